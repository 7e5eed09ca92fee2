"""Who may do what on the live page: tokens by role, and where a request may come from."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

ROLES = ("observer", "participant", "master", "alerts")
_PEOPLE = frozenset({"detected", "acknowledged", "mitigated", "note"})
MAY: Mapping[str, frozenset[str]] = {  # anybody who takes part may stop: what is broken is healed by it
    "observer": frozenset(),
    "participant": _PEOPLE | {"stop"},
    "master": _PEOPLE | {"stop", "lift", "skip", "continue", "inject"},
    "alerts": frozenset(),
}
LOOKS = ("observer", "participant", "master")


def _fresh() -> dict[str, str]:
    return {role: secrets.token_urlsafe(24) for role in ROLES}


@dataclass(frozen=True)
class Access:
    """`hosts`: what a browser may write as the host of the page, with its port. `alerts` may post alerts alone."""

    hosts: frozenset[str]
    secure: bool = False
    tokens: Mapping[str, str] = field(default_factory=_fresh, repr=False)

    def role_of(self, token: str) -> str | None:
        """Compares with every token in constant time, so that time tells nothing of how near a guess was."""
        given, found = token.encode(errors="replace"), None
        for role, known in self.tokens.items():
            if hmac.compare_digest(given, known.encode()):
                found = role
        return found

    def is_own_host(self, host: str) -> bool:
        """Refuses names that somebody else's DNS points here."""
        return host.lower() in self.hosts

    def is_own_origin(self, origin: str) -> bool:
        """A button works only from the page itself, whatever other page a browser has open."""
        scheme, _, host = origin.partition("://")
        return scheme == ("https" if self.secure else "http") and self.is_own_host(host)

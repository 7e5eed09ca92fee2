"""Rights on the live page: tokens by role, and allowed origins of a request."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

ROLES = ("observer", "participant", "master", "alerts")
_PEOPLE = frozenset({"detected", "acknowledged", "mitigated", "note"})
MAY: Mapping[str, frozenset[str]] = {  # role → actions; every participant may stop, as that heals the faults
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
    """The access to a page. `hosts`: its names, without a port. `tokens`: by role, for people and programs.
    `cookies`: the same for browsers, worthless elsewhere. `alerts`: token that may only post alerts."""

    hosts: frozenset[str]
    secure: bool = False
    tokens: Mapping[str, str] = field(default_factory=_fresh, repr=False)
    cookies: Mapping[str, str] = field(default_factory=_fresh, repr=False)

    def role_of(self, token: str) -> str | None:
        return _owner(token, self.tokens)

    def role_of_cookie(self, cookie: str) -> str | None:
        return _owner(cookie, self.cookies)

    def is_own_host(self, host: str) -> bool:
        """Refuses names that somebody else's DNS points here. Any port is right: `ssh -L` may have another one."""
        name, colon, port = host.lower().rpartition(":")
        return (name if colon and port.isdigit() else host.lower()) in self.hosts

    def is_own_origin(self, origin: str, host: str) -> bool:
        """Tells whether a request comes from our page: no other page in a browser may press its buttons."""
        return origin.lower() == f"{'https' if self.secure else 'http'}://{host.lower()}" and self.is_own_host(host)


def _owner(secret: str, known: Mapping[str, str]) -> str | None:
    """Returns the role of a secret. Compares in constant time, so that time does not show how near a guess was."""
    given, found = secret.encode(errors="replace"), None
    for role, each in known.items():
        if hmac.compare_digest(given, each.encode()):
            found = role
    return found

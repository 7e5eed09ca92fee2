"""Checks whether a request to the live page is allowed, by its token or cookie and by its origin."""

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
    """The access rights to a page. `hosts` holds the page's host names, without ports. `tokens` holds a token for each
    role, for people and programs. `cookies` holds a cookie for each role, for browsers; a cookie is not valid as a
    token. The role `alerts` may only post alerts."""

    hosts: frozenset[str]
    secure: bool = False
    tokens: Mapping[str, str] = field(default_factory=_fresh, repr=False)
    cookies: Mapping[str, str] = field(default_factory=_fresh, repr=False)

    def role_of(self, token: str) -> str | None:
        return _owner(token, self.tokens)

    def role_of_cookie(self, cookie: str) -> str | None:
        return _owner(cookie, self.cookies)

    def is_own_host(self, host: str) -> bool:
        """Returns False for a host name that is not the page's own, such as a foreign DNS name for this machine. Any
        port is allowed, because `ssh -L` may change the port."""
        name, colon, port = host.lower().rpartition(":")
        return (name if colon and port.isdigit() else host.lower()) in self.hosts

    def is_own_origin(self, origin: str, host: str) -> bool:
        """Returns True if the live page itself sent the request; other web pages must not press its buttons."""
        return origin.lower() == f"{'https' if self.secure else 'http'}://{host.lower()}" and self.is_own_host(host)


def _owner(secret: str, known: Mapping[str, str]) -> str | None:
    """Returns the role that has this token or cookie. The comparison takes constant time, so that the response time
    reveals no part of a secret."""
    given, found = secret.encode(errors="replace"), None
    for role, each in known.items():
        if hmac.compare_digest(given, each.encode()):
            found = role
    return found

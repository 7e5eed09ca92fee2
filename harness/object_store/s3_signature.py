"""Checks that a request to an S3-compatible store was signed with the key of this run.

The signature is an HMAC of the request line, the signed headers and the body's digest as stated by the client. See AWS,
"Authenticating Requests (AWS Signature Version 4)", Amazon S3 API Reference.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_S_MAX = 15 * 60
STAMP = "%Y%m%dT%H%M%SZ"
_FIELDS = re.compile(rf"{ALGORITHM} Credential=([^,\s]+), ?SignedHeaders=([^,\s]+), ?Signature=([0-9a-f]{{64}})")


@dataclass(frozen=True)
class Key:
    name: str
    secret: str


def is_signed(method: str, target: str, headers: Mapping[str, str], key: Key, now_s: float) -> bool:
    """Returns True if a request is signed with this key. `target` must still be percent-encoded, and header names must
    be in lower case."""
    found = _FIELDS.fullmatch(headers.get("authorization", ""))
    if found is None:
        return False
    name, _, scope = found[1].partition("/")
    stamp, signed = headers.get("x-amz-date", ""), found[2].split(";")
    if not hmac.compare_digest(name.encode(), key.name.encode()) or "host" not in signed:
        return False
    try:
        at = datetime.datetime.strptime(stamp, STAMP).replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        return False
    if abs(at.timestamp() - now_s) > SKEW_S_MAX:
        return False
    asked = _canonical(method, target, headers, signed)
    text = f"{ALGORITHM}\n{stamp}\n{scope}\n" + hashlib.sha256(asked.encode()).hexdigest()
    return hmac.compare_digest(_sign(key.secret, scope, text), found[3])


def _canonical(method: str, target: str, headers: Mapping[str, str], signed: list[str]) -> str:
    path, _, query = target.partition("?")
    pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
    encoded = sorted((urllib.parse.quote(name, "-_.~"), urllib.parse.quote(value, "-_.~")) for name, value in pairs)
    lines = [f"{name}:{' '.join(headers.get(name, '').split())}" for name in signed]
    body = headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    parts = [method, path, "&".join(f"{name}={value}" for name, value in encoded), *lines, "", ";".join(signed), body]
    return "\n".join(parts)


def _sign(secret: str, scope: str, text: str) -> str:
    key = b"AWS4" + secret.encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()

"""Defines the HTTP dialects of object stores: how to read a request, check its key, and refuse it.

The dialect of S3 follows the Amazon S3 API Reference. The dialect of GCS is version 1 of Google Cloud Storage's JSON
API, with a bearer token. Its paths begin with `/storage/v1/b/`, optionally after `/upload` or `/download`.
"""

from __future__ import annotations

import abc
import hmac
import json
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from harness.object_store.s3_signature import ALGORITHM, Key, is_signed

LIST, READ, STAT, WRITE, DELETE, COMPLETE = "list", "read", "stat", "write", "delete", "complete"
FORBIDDEN, ERROR, THROTTLE, MISSING = "forbidden", "error", "throttle", "missing"


@dataclass(frozen=True)
class Head:
    """The head of an HTTP request or answer: its start line, its headers, and its unparsed bytes (`raw`). In an answer,
    `method` is the version of HTTP, and `target` the status."""

    raw: bytes
    method: str
    target: str
    headers: dict[str, str]

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(self.target.partition("?")[2], keep_blank_values=True))


@dataclass(frozen=True)
class Asked:
    """What a request to an object store asks for: an operation (empty if it is unknown) on a bucket or an object."""

    operation: str
    path: str

    @property
    def bucket(self) -> str:
        return self.path.split("/")[1]


class Dialect(abc.ABC):
    """The form of HTTP that one kind of object store (S3 or GCS) speaks. `content` is the content type of answers that
    refuse a request."""

    content: str

    @abc.abstractmethod
    def asked(self, head: Head) -> Asked: ...

    @abc.abstractmethod
    def allowed(self, head: Head, key: Key, now_s: float) -> bool: ...

    @abc.abstractmethod
    def refused(self, why: str) -> tuple[int, str, str]:
        """Returns HTTP status, reason and body with which this kind of store refuses a request; `why` is `FORBIDDEN`,
        `ERROR`, `THROTTLE` or `MISSING`."""

    def refusal(self, head: Head, why: str) -> bytes:
        status, reason, body = self.refused(why)
        text = (
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: {self.content}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return text.encode() + (b"" if head.method == "HEAD" else body.encode())


class S3(Dialect):
    content = "application/xml"
    _REFUSED: ClassVar[Mapping[str, tuple[int, str, str, str]]] = {
        FORBIDDEN: (403, "Forbidden", "SignatureDoesNotMatch", "The request is not signed with the key of this run."),
        ERROR: (500, "Internal Server Error", "InternalError", "We encountered an internal error. Please try again."),
        THROTTLE: (503, "Slow Down", "SlowDown", "Please reduce your request rate."),
        MISSING: (404, "Not Found", "NoSuchKey", "The specified key does not exist."),
    }

    def asked(self, head: Head) -> Asked:
        of_object, asks = "/" in head.path.strip("/"), head.query.keys()
        if head.method == "POST":
            operation = COMPLETE if "uploadId" in asks else DELETE if "delete" in asks else ""
        elif head.method == "GET":
            operation = "" if asks & {"uploads", "uploadId"} else READ if of_object else LIST
        else:
            operation = {"PUT": WRITE, "DELETE": DELETE, "HEAD": STAT}.get(head.method, "")
        return Asked(operation, head.path)

    def allowed(self, head: Head, key: Key, now_s: float) -> bool:
        return is_signed(head.method, head.target, head.headers, key, now_s)

    def refused(self, why: str) -> tuple[int, str, str]:
        status, reason, code, words = self._REFUSED[why]
        return (
            status,
            reason,
            f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{words}</Message></Error>",
        )


class Gcs(Dialect):
    content = "application/json; charset=UTF-8"
    PATH = re.compile(r"(/upload|/download|/resumable/upload)?/storage/v1/b/([^/]+)(/o(/[^/]+)?(/compose)?)?")
    _REFUSED: ClassVar[Mapping[str, tuple[int, str, str, str]]] = {
        FORBIDDEN: (401, "Unauthorized", "authError", "Invalid Credentials"),
        ERROR: (503, "Service Unavailable", "backendError", "We encountered an internal error. Please try again."),
        THROTTLE: (429, "Too Many Requests", "rateLimitExceeded", "The rate of requests is too high."),
        MISSING: (404, "Not Found", "notFound", "No such object."),
    }

    def asked(self, head: Head) -> Asked:
        found = self.PATH.fullmatch(head.path)
        if found is None:
            return Asked("", head.path)
        way, bucket, objects, name, composes = found.groups()
        key = urllib.parse.unquote(name[1:]) if name else head.query.get("name", "")
        path = f"/{bucket}/{key}" if key else f"/{bucket}"
        if composes:
            return Asked(COMPLETE, path)
        if head.method == "GET":
            content = way == "/download" or head.query.get("alt") == "media"
            return Asked((READ if content else STAT) if name else LIST if objects else "", path)
        operation = {"PUT": WRITE, "POST": WRITE, "PATCH": WRITE, "DELETE": DELETE}.get(head.method, "")
        return Asked(operation if way or name else "", path)

    def allowed(self, head: Head, key: Key, now_s: float) -> bool:
        scheme, _, token = head.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.encode(), key.secret.encode())

    def refused(self, why: str) -> tuple[int, str, str]:
        status, reason, code, words = self._REFUSED[why]
        error = {"code": status, "message": words, "errors": [{"message": words, "domain": "global", "reason": code}]}
        return status, reason, json.dumps({"error": error})


def of(head: Head) -> Dialect:
    """Returns the form of HTTP (S3's or GCS's) in which a request is written."""
    signed = head.headers.get("authorization", "").startswith(ALGORITHM)
    return Gcs() if Gcs.PATH.fullmatch(head.path) and not signed else S3()

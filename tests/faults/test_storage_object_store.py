"""The proxy before a real S3-compatible server, asked by the client that trainers use."""

import asyncio
import dataclasses
import hashlib
import importlib.util
import json
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from faults.fault_context import means
from hypothesis import given
from hypothesis import strategies as st

from harness.api.testing import FaultContext
from harness.errors import FaultError
from harness.faults.contract import Target, build_fault
from harness.node.node_paths import KEY_ENV, KEY_NAME
from harness.object_store import dialects, s3_proxy, s3_signature
from harness.object_store.dialects import Head
from harness.object_store.s3_proxy import parse_head, read_list

if importlib.util.find_spec("moto") is None or importlib.util.find_spec("botocore") is None:
    pytest.skip("moto and botocore are not installed", allow_module_level=True)

import botocore.exceptions
import botocore.session
from botocore.config import Config

from harness.object_store import s3_store

SECRET = "the key of this run"


@dataclass
class Store:
    run_dir: pathlib.Path
    port: int

    def client(self, attempts: int = 1, name: str = KEY_NAME, secret: str = SECRET) -> Any:
        session = botocore.session.Session()
        session.set_credentials(name, secret)
        config = Config(retries={"total_max_attempts": attempts, "mode": "standard"}, s3={"addressing_style": "path"})
        return session.create_client("s3", "us-east-1", endpoint_url=f"http://127.0.0.1:{self.port}", config=config)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    run_dir = tmp_path_factory.mktemp("run")
    control = run_dir / "object_store"
    control.mkdir()
    listening, behind = s3_store.listen()
    words, quiet = [sys.executable, "-c", s3_store.SERVER, str(listening.fileno())], subprocess.DEVNULL
    server = subprocess.Popen(words, stdout=quiet, stderr=quiet, pass_fds=[listening.fileno()])
    listening.close()
    started = ["harness.object_store.s3_proxy", "127.0.0.1", "0", s3_store.way_to(behind), str(control)]
    proxy = subprocess.Popen(
        [sys.executable, "-m", *started],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {KEY_ENV: SECRET},
        pass_fds=[behind],
    )
    try:
        assert proxy.stdout is not None
        found = Store(run_dir, int(proxy.stdout.readline()))
        found.client().create_bucket(Bucket="checkpoints")
        yield found
    finally:
        for process in (proxy, server):
            process.kill()
            process.communicate()
        os.close(behind)


class Context(FaultContext):
    """`during` is what happens once, while the fault acts."""

    def __init__(self, store: Store, during: Callable[[], None]):
        super().__init__(store.run_dir, seed=11)
        self.during = during

    def wait(self, seconds: float, until: Callable[[], bool] | None = None, meanwhile: object = None) -> bool:
        self.during()
        self.during = lambda: None
        return True


def run(store: Store, during: Callable[[], None], **parameters: Any) -> tuple[float, float, str, bool]:
    """Its effect. Whether it is over is measured, too: not before it is healed."""
    fault, context = build_fault("object_store", parameters), Context(store, during)
    fault.inject([Target(0)], means(context))
    fault.see_end([Target(0)], means(context))
    fault.heal([Target(0)], means(context))
    fault.see_end([Target(0)], means(context))
    assert [(each[1:]) for each in context.ends] == [(0, "rules and requests gone wrong", ok) for ok in (False, True)]
    (effect,) = context.effects
    return effect


@pytest.mark.parametrize("name", ["whole", "a folder/ä+b=c&d~é (1)"])
def test_everything_passes_when_nothing_is_wrong(store: Store, name: str) -> None:
    """A key with odd characters is signed as the client signs it."""
    data, client, place = os.urandom(300_000), store.client(), {"Bucket": "checkpoints"}
    client.put_object(**place, Key=name, Body=data, Metadata={"note": "two  spaces"})
    assert client.get_object(**place, Key=name)["Body"].read() == data
    found = client.list_objects_v2(**place, Prefix=name[:9], Delimiter="/")
    assert [each["Key"] for each in found["Contents"]] == [name]
    client.delete_object(**place, Key=name)


@pytest.mark.parametrize("wrong", [{"name": "another"}, {"secret": "another"}], ids=["name", "secret"])
def test_who_has_not_the_key_of_the_run_gets_nothing(store: Store, wrong: dict[str, str]) -> None:
    store.client().put_object(Bucket="checkpoints", Key="ours", Body=b"x")
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        store.client(**wrong).get_object(Bucket="checkpoints", Key="ours")  # type: ignore[arg-type]
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    with pytest.raises(urllib.error.HTTPError) as unsigned:
        urllib.request.urlopen(f"http://127.0.0.1:{store.port}/checkpoints/ours")
    assert unsigned.value.code == 403
    unsigned.value.close()


def test_a_signature_grows_old() -> None:
    key = s3_signature.Key("chaos", "secret")
    stamp = "20260101T000000Z"
    headers = {"host": "h", "x-amz-date": stamp, "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    scope, signed = "20260101/us-east-1/s3/aws4_request", "host;x-amz-date"
    canonical = s3_signature._canonical("GET", "/b/k?x=1", headers, signed.split(";"))
    text = f"{s3_signature.ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = s3_signature._sign("secret", scope, text)
    headers["authorization"] = (
        f"{s3_signature.ALGORITHM} Credential=chaos/{scope}, SignedHeaders={signed}, Signature={signature}"
    )
    at = 1767225600.0  # 2026-01-01T00:00:00Z
    assert s3_signature.is_signed("GET", "/b/k?x=1", headers, key, at + 60)
    assert not s3_signature.is_signed("GET", "/b/k?x=1", headers, key, at + 3600)
    assert not s3_signature.is_signed("GET", "/b/k?x=2", headers, key, at)
    assert not s3_signature.is_signed("DELETE", "/b/k?x=1", headers, key, at)


@pytest.mark.parametrize("kind, status", [("error", 500), ("throttle", 503)])
def test_errors_come_as_s3_gives_them_and_end(store: Store, kind: str, status: int) -> None:
    def during() -> None:
        with pytest.raises(botocore.exceptions.ClientError) as refused:
            store.client().put_object(Bucket="checkpoints", Key="x", Body=b"x")
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status

    assert run(store, during, kind=kind, share=1.0) == (1, 1, "requests gone wrong", True)
    store.client().put_object(Bucket="checkpoints", Key="x", Body=b"x")


@given(share=st.floats(0.01, 1), seed=st.integers(0, 99), requests=st.integers(1, 500))
def test_a_rule_acts_on_its_share_of_few_requests_too(share: float, seed: int, requests: int) -> None:
    proxy = s3_proxy.Proxy("", pathlib.Path(), s3_signature.Key("", ""))
    proxy._dice = random.Random(seed)
    drawn = sum(proxy._drawn(share) for _ in range(requests))
    assert abs(drawn - share * requests) <= 2
    assert drawn >= 1 or requests < math.ceil(1 / share)


def test_a_client_that_tries_again_gets_through(store: Store) -> None:
    def during() -> None:
        for number in range(8):
            store.client(attempts=10).put_object(Bucket="checkpoints", Key=f"again-{number}", Body=b"x")

    acted, expected, _, ok = run(store, during, kind="throttle", share=0.5)
    assert ok and acted >= 1 and abs(acted - expected) <= 6


def test_a_part_of_a_multipart_upload_is_reset(store: Store) -> None:
    client = store.client()
    upload = client.create_multipart_upload(Bucket="checkpoints", Key="big")["UploadId"]

    def during() -> None:
        with pytest.raises(botocore.exceptions.HTTPClientError):
            client.upload_part(Bucket="checkpoints", Key="big", UploadId=upload, PartNumber=1, Body=bytes(6 << 20))

    assert run(store, during, kind="reset", share=1.0)[3]
    assert "Parts" not in client.list_parts(Bucket="checkpoints", Key="big", UploadId=upload)


def test_what_was_just_written_is_not_there_yet(store: Store) -> None:
    def during() -> None:
        store.client().put_object(Bucket="checkpoints", Key="fresh", Body=b"x")
        with pytest.raises(botocore.exceptions.ClientError, match="NoSuchKey"):
            store.client().get_object(Bucket="checkpoints", Key="fresh")

    assert run(store, during, kind="stale", share=1.0, delay="60s")[3]
    assert store.client().get_object(Bucket="checkpoints", Key="fresh")["Body"].read() == b"x"


def test_a_short_body_comes_with_status_200_and_a_length_that_fits_it(store: Store) -> None:
    store.client().put_object(Bucket="checkpoints", Key="long", Body=b"0123456789")

    def during() -> None:
        found = store.client().get_object(Bucket="checkpoints", Key="long")
        assert (found["ContentLength"], found["Body"].read()) == (5, b"01234")
        assert store.client().head_object(Bucket="checkpoints", Key="long")["ContentLength"] == 10

    assert run(store, during, kind="short_read", share=1.0) == (1, 1, "requests gone wrong", True)
    assert store.client().get_object(Bucket="checkpoints", Key="long")["Body"].read() == b"0123456789"


def test_a_list_is_as_it_was_before_the_newest_change(store: Store) -> None:
    client, bucket = store.client(), {"Bucket": "checkpoints"}

    def listed() -> list[str]:
        return [each["Key"] for each in client.list_objects_v2(**bucket, Prefix="lag/").get("Contents", [])]

    def during() -> None:
        client.put_object(**bucket, Key="lag/new", Body=b"x")
        client.delete_object(**bucket, Key="lag/old")
        assert listed() == ["lag/old"]

    def look() -> None:
        assert listed() == ["lag/new"]

    client.put_object(**bucket, Key="lag/old", Body=b"x")
    assert listed() == ["lag/old"]
    assert run(store, during, kind="stale_list", share=1.0, delay="60s")[3]
    look()
    assert run(store, look, kind="stale_list", share=1.0, delay="60s")[3] is False, "nothing changed: nothing to hide"


def test_a_list_that_arrives_in_pieces_is_whole() -> None:
    async def arrives() -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(b"HTTP/1.1 200 OK\r\n\r\n")
        asyncio.get_running_loop().call_later(0.05, reader.feed_data, b"<ListBucketResult/>")
        asyncio.get_running_loop().call_later(0.1, reader.feed_eof)
        return await read_list(reader)

    assert asyncio.run(arrives()).endswith(b"<ListBucketResult/>")


def test_an_upload_without_one_of_its_parts_is_told_to_be_complete(store: Store) -> None:
    client, place = store.client(), {"Bucket": "checkpoints", "Key": "parts"}
    upload = client.create_multipart_upload(**place)["UploadId"]
    parts = []
    for number, content in enumerate((b"a" * (5 << 20), b"b" * (5 << 20), b"c"), 1):
        told = client.upload_part(**place, UploadId=upload, PartNumber=number, Body=content)
        parts.append({"PartNumber": number, "ETag": told["ETag"]})

    def during() -> None:
        done = client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts})
        assert done["ResponseMetadata"]["HTTPStatusCode"] == 200

    assert run(store, during, kind="lost_part", share=1.0)[3]
    assert client.head_object(**place)["ContentLength"] in (10 << 20, (5 << 20) + 1)


GCS = "/storage/v1/b/checkpoints/o"


def head(method: str, target: str, **headers: str) -> Head:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return parse_head("\r\n".join([*lines, "", ""]).encode())


@pytest.mark.parametrize(
    ("method", "target", "asked"),
    [
        ("GET", "/checkpoints/job/a?x-id=GetObject", ("read", "/checkpoints/job/a")),
        ("GET", "/checkpoints?list-type=2&prefix=job%2F", ("list", "/checkpoints")),
        ("GET", "/checkpoints/job/a?uploadId=1", ("", "/checkpoints/job/a")),
        ("PUT", "/checkpoints/job/a?partNumber=1&uploadId=1", ("write", "/checkpoints/job/a")),
        ("POST", "/checkpoints/job/a?uploadId=1", ("complete", "/checkpoints/job/a")),
        ("POST", "/checkpoints?delete", ("delete", "/checkpoints")),
        ("GET", f"{GCS}/job%2Fa?alt=media", ("read", "/checkpoints/job/a")),
        ("GET", f"/download{GCS}/job%2Fa", ("read", "/checkpoints/job/a")),
        ("GET", f"{GCS}/job%2Fa", ("stat", "/checkpoints/job/a")),
        ("GET", f"{GCS}?prefix=job%2F&delimiter=%2F", ("list", "/checkpoints")),
        ("POST", f"/upload{GCS}?uploadType=media&name=job%2Fa", ("write", "/checkpoints/job/a")),
        ("POST", f"{GCS}/job%2Fa/compose", ("complete", "/checkpoints/job/a")),
        ("DELETE", f"{GCS}/job%2Fa", ("delete", "/checkpoints/job/a")),
    ],
)
def test_what_is_asked_is_known_in_both_dialects(method: str, target: str, asked: tuple[str, str]) -> None:
    assert dataclasses.astuple(dialects.of(head(method, target)).asked(head(method, target))) == asked


def test_a_request_in_the_dialect_of_gcs_needs_the_key_and_is_refused_in_its_form(store: Store) -> None:
    """The store behind knows no GCS, so only what the proxy itself answers is tried."""

    def ask(token: str) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{store.port}{GCS}/a?alt=media", headers={"Authorization": f"Bearer {token}"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        return refused.value.code, json.load(refused.value)["error"]["errors"][0]["reason"]

    assert ask("another") == (401, "authError")
    told: list[tuple[int, Any]] = []
    assert run(store, lambda: told.append(ask(SECRET)), kind="throttle", share=1.0)[3]
    assert told == [(429, "rateLimitExceeded")]


def test_answers_come_late(store: Store) -> None:
    def during() -> None:
        for _ in range(3):
            store.client().head_bucket(Bucket="checkpoints")

    late_ms, asked_ms, _, ok = run(store, during, kind="slow", share=1.0, delay="1s")
    assert late_ms >= asked_ms == 1000
    assert ok == (late_ms <= 1250), "other work makes them later still, which is told"


def test_a_killed_store_leaves_no_file(tmp_path: pathlib.Path) -> None:
    folders = [tmp_path / name for name in ("temporary", "control")]
    for folder in folders:
        folder.mkdir()
    up = "import time; print('up', flush=True); time.sleep(600)"
    command = [*("127.0.0.1", "0"), str(folders[1]), "checkpoints", sys.executable, "-c", up]
    running = subprocess.Popen(
        [sys.executable, "-m", "harness.object_store.s3_store", *command],
        stdout=subprocess.PIPE,
        env=os.environ | {KEY_ENV: SECRET, "TMPDIR": str(folders[0])},
        start_new_session=True,
    )
    assert running.stdout is not None
    said = running.stdout.readline(), running.stdout.readline()
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    assert b"up\n" in said
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


def test_no_request_is_no_effect_and_no_proxy_an_error(store: Store, tmp_path: pathlib.Path) -> None:
    assert run(store, lambda: None, kind="error")[3] is False
    with pytest.raises(FaultError, match="no proxy"):
        run(Store(tmp_path, 0), lambda: None)

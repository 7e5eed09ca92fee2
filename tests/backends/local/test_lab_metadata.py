"""The metadata endpoint: what each cloud's own clients see before and after a notice."""

import asyncio
import email.utils
import json
import socket
import time
from collections.abc import Awaitable, Callable

import pytest
from waiting import HANG_S

from harness.errors import UsageError
from harness.node.metadata import REQUEST_BYTES_MAX, Endpoint

Get = Callable[..., Awaitable[tuple[int, str]]]
GOOGLE = {"Metadata-Flavor": "Google"}
AZURE = {"Metadata": "true"}
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
ACTION = "/latest/meta-data/spot/instance-action"
TOKEN = "/latest/api/token"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"


def served(test: Callable[[Endpoint, Get], Awaitable[None]]) -> Callable[[], None]:
    """The test as pytest calls it: with an endpoint, and what asks it."""
    return lambda: serve(test)


def serve(test: Callable[[Endpoint, Get], Awaitable[None]]) -> None:
    async def run() -> None:
        endpoint = Endpoint("node7")
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        await endpoint.serve(listener)

        async def get(
            path: str, headers: dict[str, str] | None = None, method: str = "GET", body: str = ""
        ) -> tuple[int, str]:
            lines = [f"{method} {path} HTTP/1.1", f"Content-Length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
            return await raw("\r\n".join([*lines, "", body]).encode())

        async def raw(data: bytes) -> tuple[int, str]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            head, _, text = (await reader.read()).decode().partition("\r\n\r\n")
            writer.close()
            return int(head.split()[1]) if head else 0, text

        get.raw = raw  # type: ignore[attr-defined]
        await asyncio.wait_for(test(endpoint, get), HANG_S)
        endpoint.close()

    asyncio.run(run())


@served
async def test_ec2_wants_a_token_and_is_silent_until_the_notice(endpoint: Endpoint, get: Get) -> None:
    assert (await get(ACTION))[0] == 401
    assert (await get(ACTION, {"X-aws-ec2-metadata-token": "made up"}))[0] == 401
    assert (await get(TOKEN, {TTL: "60"}))[0] == 405
    assert (await get(TOKEN, method="PUT"))[0] == 400
    assert (await get(TOKEN, {TTL: "21601"}, "PUT"))[0] == 400
    status, token = await get(TOKEN, {TTL: "60"}, "PUT")
    assert status == 200
    signed = {"X-aws-ec2-metadata-token": token}
    assert (await get(ACTION, signed))[0] == 404
    assert await get("/latest/meta-data/instance-life-cycle", signed) == (200, "spot")
    assert endpoint.seen == 0
    announced = time.time()
    endpoint.announce("ec2", 120)
    status, text = await get(ACTION, signed)
    document = json.loads(text)
    at = time.mktime(time.strptime(document["time"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert (status, document["action"]) == (200, "terminate")
    assert announced + 119 <= at <= time.time() + 120
    assert (await get("/latest/meta-data/spot/termination-time", signed))[1] == document["time"]
    assert endpoint.seen == 2
    assert await get(PREEMPTED, GOOGLE) == (200, "FALSE"), "another provider's clients see nothing"


@served
async def test_gcp_can_be_asked_and_waited_for(endpoint: Endpoint, get: Get) -> None:
    assert (await get(PREEMPTED))[0] == 403
    assert await get(PREEMPTED, GOOGLE) == (200, "FALSE")
    assert await get(f"{PREEMPTED}?wait_for_change=true&timeout_sec=0", GOOGLE) == (200, "FALSE")
    waiting = asyncio.ensure_future(get(f"{PREEMPTED}?wait_for_change=true", GOOGLE))
    endpoint.announce("azure", 30)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    endpoint.announce("gcp", 30)
    assert await waiting == (200, "TRUE")
    assert endpoint.seen == 1
    assert await get(f"{PREEMPTED}?wait_for_change=true&last_etag={'0' * 16}", GOOGLE) == (200, "TRUE")


@served
async def test_azure_lists_the_event_and_takes_the_acknowledgement(endpoint: Endpoint, get: Get) -> None:
    assert (await get(EVENTS))[0] == 400
    assert (await get(EVENTS.partition("?")[0], AZURE))[0] == 400
    status, text = await get(EVENTS, AZURE)
    assert (status, json.loads(text)["Events"]) == (200, [])
    announced = time.time()
    endpoint.announce("azure", 30)
    document = json.loads((await get(EVENTS, AZURE))[1])
    (event,) = document["Events"]
    assert (event["EventType"], event["EventStatus"], event["Resources"]) == ("Preempt", "Scheduled", ["node7"])
    at = email.utils.parsedate_to_datetime(event["NotBefore"]).timestamp()
    assert announced + 29 <= at <= time.time() + 30
    acknowledgement = json.dumps({"StartRequests": [{"EventId": event["EventId"]}]})
    assert (await get(EVENTS, AZURE, "POST", "{}"))[0] == 400
    assert (await get(EVENTS, AZURE, "POST", acknowledgement))[0] == 200
    assert json.loads((await get(EVENTS, AZURE))[1])["Events"][0]["EventStatus"] == "Started"
    assert endpoint.seen == 2


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET / FTP/1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"x" * (REQUEST_BYTES_MAX + 10),
    ],
)
def test_what_is_no_request_does_not_disturb_the_endpoint(data: bytes) -> None:
    async def test(endpoint: Endpoint, get: Get) -> None:
        status, _ = await get.raw(data)  # type: ignore[attr-defined]
        assert status in (400, 0)
        assert (await get("/nowhere"))[0] == 404
        assert (await get("/"))[1] == "computeMetadata/\n"

    serve(test)


@pytest.mark.parametrize(("provider", "in_s"), [("oracle", 1.0), ("ec2", -1.0), ("ec2", float("nan"))])
def test_a_notice_must_make_sense(provider: str, in_s: float) -> None:
    with pytest.raises(UsageError):
        Endpoint("n").announce(provider, in_s)

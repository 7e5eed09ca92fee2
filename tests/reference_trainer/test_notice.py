"""Notices from metadata endpoints, as the three clouds serve them."""

import pathlib
from collections.abc import Iterator

import pytest
from http_servers import Asked, serving
from job import Job, Nursery

from reference_trainer import preemption
from reference_trainer.preemption import EXIT_DRAINED

TOKEN = "secret"


class Endpoint:
    """A metadata service of one machine; `evicted` makes it say so."""

    address = ""
    evicted: str | None = None

    def answer(self, asked: Asked) -> tuple[int, str]:
        path, headers = asked.path, asked.headers
        if asked.method == "PUT":
            wanted = path == "/latest/api/token" and headers["X-aws-ec2-metadata-token-ttl-seconds"]
            return (200, TOKEN) if wanted else (404, "")
        if path == "/latest/meta-data/spot/instance-action":
            if headers["X-aws-ec2-metadata-token"] != TOKEN:
                return 401, ""
            if self.evicted == "ec2":
                return 200, '{"action": "terminate", "time": "2030-01-01T00:00:00Z"}'
        elif path == "/computeMetadata/v1/instance/preempted" and headers["Metadata-Flavor"] == "Google":
            return 200, "TRUE" if self.evicted == "gcp" else "FALSE"
        elif headers["Metadata"] == "true":
            if path.startswith("/metadata/scheduledevents?api-version="):
                return 200, azure_events({"azure": "me", "other": "someone-else"}.get(self.evicted or ""))
            if path.startswith("/metadata/instance/compute/name?"):
                return 200, "me"
        return 404, ""


def azure_events(machine: str | None) -> str:
    event = f'{{"EventId": "1", "EventType": "Preempt", "Resources": ["{machine}"]}}'
    return f'{{"DocumentIncarnation": 1, "Events": [{event if machine else ""}]}}'


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    found = Endpoint()
    with serving(found.answer) as address:
        found.address = address.removeprefix("http://")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{address}/")
        monkeypatch.setenv("GCE_METADATA_HOST", found.address)
        yield found


ASK = {"ec2": preemption.ec2_evicted, "gcp": preemption.gcp_evicted, "azure": preemption.azure_evicted}


@pytest.mark.parametrize("cloud", [*ASK, "other"])
def test_each_cloud_is_understood(endpoint: Endpoint, cloud: str) -> None:
    """Preemption of another machine of the scale set is not ours."""
    assert not any(ask() for ask in ASK.values())
    endpoint.evicted = cloud
    assert [name for name, ask in ASK.items() if ask()] == [cloud] * (cloud in ASK)


def test_nobody_there_is_no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    assert not any(ask() for ask in ASK.values())


def test_a_notice_drains_the_node(nursery: Nursery, tmp_path: pathlib.Path, endpoint: Endpoint) -> None:
    with Job(nursery, tmp_path / "job", 100_000, "--metadata", "auto", "--poll-s", "0.1", nproc=2) as job:
        job.start(
            "a", AWS_EC2_METADATA_SERVICE_ENDPOINT=f"http://{endpoint.address}", GCE_METADATA_HOST=endpoint.address
        )
        job.wait_for_step(3)
        endpoint.evicted = "ec2"
        assert job.code("a") == EXIT_DRAINED
        assert [event["source"] for event in job.seen("notice", rank=0)] == ["ec2"]
        saved = job.seen("checkpoint.committed")[-1]
        assert (saved["kind"], saved["step"]) == ("emergency", job.seen("step")[-1]["step"])
        assert {event["code"] for event in job.seen("worker.exit")} == {EXIT_DRAINED}

"""A real Prometheus and a real Alertmanager on free ports of this host, for as long as a test needs them."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from waiting import HANG_S, until

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        taken = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in taken]


def answer(url: str) -> Any:
    """The JSON of an answer of 200, or an `HTTPError` with what was said instead."""
    try:
        with _DIRECT.open(url, timeout=HANG_S) as got:
            return json.loads(got.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{url}: {error.code}: {error.read(500).decode()}") from error


def query_range(prometheus: str, query: str, begin_s: float, end_s: float, step_s: float = 1.0) -> list[Any]:
    """The series of a PromQL query in this time. An `AssertionError` with Prometheus' words where it does not parse."""
    words = urllib.parse.urlencode({"query": query, "start": begin_s, "end": end_s, "step": step_s})
    return list(answer(f"{prometheus}/api/v1/query_range?{words}")["data"]["result"])


@contextlib.contextmanager
def running(command: Sequence[str], log: pathlib.Path, ready: str) -> Iterator[None]:
    """Killed at the end, or when this process dies. `ready` is an address that answers with 200 once it has started."""
    with log.open("wb") as file:
        started = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command], stdout=file, stderr=file, start_new_session=True
        )
    try:

        def answers() -> bool:
            assert started.poll() is None, log.read_text()[-2000:]
            with contextlib.suppress(OSError), _DIRECT.open(ready, timeout=2):
                return True
            return False

        until(answers, lambda: log.read_text()[-2000:])
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


@contextlib.contextmanager
def alerting(folder: pathlib.Path, targets: Mapping[str, str], rules: str, webhook: str, token: str) -> Iterator[str]:
    """The address of a Prometheus that scrapes `targets` (job → host:port) every second, and whose alerts an
    Alertmanager hands on to `webhook`."""
    port, alerts, gossip = free_ports(3)
    (folder / "rules.yaml").write_text(rules)
    receiver = {"url": webhook, "http_config": {"authorization": {"credentials": token}}}
    route = {"receiver": "day", "group_by": ["..."], "group_wait": "0s", "group_interval": "250ms"}
    manager = {"route": route, "receivers": [{"name": "day", "webhook_configs": [receiver]}]}
    (folder / "alertmanager.yml").write_text(json.dumps(manager))
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "500ms"},
        "rule_files": ["rules.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alerts}"]}]}]},
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [at]}]} for job, at in targets.items()],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    base = f"http://127.0.0.1:{port}"
    manager_line = [
        "prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alerts",
        f"--web.listen-address=127.0.0.1:{alerts}", f"--cluster.listen-address=127.0.0.1:{gossip}",
    ]  # fmt: skip
    prometheus_line = [
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (
        running(manager_line, folder / "alertmanager.log", f"http://127.0.0.1:{alerts}/-/ready"),
        running(prometheus_line, folder / "prometheus.log", f"{base}/-/ready"),
    ):
        yield base

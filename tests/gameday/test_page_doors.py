"""Who gets in, what they may press, and what they may see."""

import asyncio
import contextlib
import json
import os
import pathlib
import re
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator

import machine
import pytest
from waiting import until

pytest.importorskip("starlette", reason="starlette is missing: make setup")

from gameday.page_days import EVIL, view
from starlette.testclient import TestClient

from harness.errors import UsageError
from harness.gameday.day_view import NewsView, for_role
from harness.gameday.page import alerts, app, connection_limits
from harness.gameday.page.access import Access
from harness.gameday.page.app import PHASES, STREAMS_MAX, Page, newest_words
from harness.gameday.page.hub import Hub
from harness.gameday.page.page_server import PageAddress, Served, serving
from harness.gameday.requests import AlertNews, Ask, Desk
from harness.timeline.phase_names import PHASES as TIMELINE_PHASES

HOST = "127.0.0.1:8000"
OWN = {"origin": f"http://{HOST}", "content-type": "application/json"}


class Clerk(threading.Thread):
    """Answers what is handed in, as the job's loop does."""

    def __init__(self, desk: Desk):
        super().__init__(daemon=True)
        self.desk, self.heard, self.over = desk, list[Ask | AlertNews](), False

    def run(self) -> None:
        while not self.over:
            asked = self.desk.take()
            if asked is None:
                time.sleep(0.002)
                continue
            self.heard.append(asked)
            if isinstance(asked, Ask):
                asked.reply.set_result("")


@pytest.fixture
def clerk() -> Iterator[Clerk]:
    clerk = Clerk(Desk())
    clerk.start()
    yield clerk
    clerk.over = True
    clerk.join()


@pytest.fixture
def page(clerk: Clerk, tmp_path: pathlib.Path) -> Page:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "node0.1.log").write_text("old\n")
    (tmp_path / "logs" / "node0.2.log").write_text(f"new \x1b[31m{EVIL}\n")
    return Page(Access(frozenset({"127.0.0.1"})), Hub(), clerk.desk, tmp_path, lambda narrow: "", "chaos-8000")


@pytest.fixture
def client(page: Page) -> Iterator[TestClient]:
    with TestClient(page.app(), base_url=f"http://{HOST}") as client:
        page.hub.publish(view(), [])
        until(lambda: page.hub.view, "the first view")
        yield client


def enter(client: TestClient, page: Page, role: str) -> str:
    answer = client.get("/", params={"token": page.access.tokens[role]})
    assert answer.status_code == 200
    return answer.text


def test_without_its_token_nothing_opens(client: TestClient, page: Page, clerk: Clerk) -> None:
    for token in ("", "x", "\u00e9\ud800".encode(errors="replace").decode(), page.access.tokens["alerts"]):
        assert client.get("/", params={"token": token}).status_code == 403
    for path in ("/events", "/log?node=node0", "/chart"):
        assert client.get(path).status_code == 403
    assert client.post("/act", json={"action": "stop"}, headers=OWN).status_code == 403
    enter(client, page, "master")
    assert client.post("/alerts", json={"name": "x"}).status_code == 403, "a cookie is not enough"
    for path, said, token in (
        ("/alerts", {"name": "x"}, page.access.tokens["observer"]),
        ("/notes", {"action": "stop"}, page.access.tokens["alerts"]),
        ("/notes", {"action": "stop"}, page.access.cookies["master"]),  # the cookie opens this page alone
    ):
        assert client.post(path, json=said, headers={"authorization": f"Bearer {token}"}).status_code == 403
    assert clerk.heard == []


def test_the_cookie_is_kept_from_scripts_and_other_sites(client: TestClient, page: Page) -> None:
    answer = client.get("/", params={"token": page.access.tokens["master"]})
    cookie, policy = answer.headers["set-cookie"].lower(), answer.headers["content-security-policy"]
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert page.access.tokens["master"] not in answer.text + answer.headers["set-cookie"]


def test_any_port_of_this_host_leads_to_the_page_and_only_the_page_itself_may_press(
    client: TestClient, page: Page
) -> None:
    there = {"host": "127.0.0.1:9999"}  # ssh -L 9999:127.0.0.1:8000
    assert client.get("/", params={"token": page.access.tokens["master"]}, headers=there).status_code == 200
    for origin, status in (("http://127.0.0.1:9999", 200), ("http://127.0.0.1:8000", 403), ("null", 403)):
        pressed = client.post("/act", json={"action": "note", "text": "x"}, headers={**OWN, **there, "origin": origin})
        assert pressed.status_code == status
    answer = client.get("/", params={"token": page.access.tokens["master"]}, headers={"host": "evil.example:8000"})
    assert answer.status_code == 421


def test_too_many_open_pages_are_refused_and_stop_still_works(
    client: TestClient, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(client, page, "participant")
    page.hub.streams = STREAMS_MAX
    assert client.get("/events").status_code == 503
    assert client.post("/act", json={"action": "stop"}, headers=OWN).status_code == 200
    page.hub.streams = 0
    page.hub.close_soon()
    assert "event: over" in client.get("/events").text
    assert page.hub.streams == 0, "a page that is closed counts no more"


@pytest.mark.parametrize(
    ("role", "action", "status"),
    [
        ("master", "stop", 200),
        ("master", "inject", 200),
        ("participant", "stop", 200),
        ("participant", "detected", 200),
        ("participant", "inject", 403),
        ("participant", "lift", 403),
        ("observer", "stop", 403),
        ("observer", "note", 403),
        ("master", "format", 400),
    ],
)
def test_each_role_presses_its_own_buttons(
    client: TestClient, page: Page, clerk: Clerk, role: str, action: str, status: int
) -> None:
    enter(client, page, role)
    answer = client.post("/act", json={"action": action, "who": "Ada"}, headers=OWN)
    assert answer.status_code == status, answer.text
    pressed = [(each.action, each.role, each.who) for each in clerk.heard if isinstance(each, Ask)]
    assert pressed == ([(action, role, "Ada")] if status == 200 else [])


def test_a_browser_with_pages_of_two_roles_asks_for_each_as_its_own(client: TestClient, page: Page) -> None:
    def asked(role: str) -> int:
        return client.post(f"/act?as={role}", json={"action": "stop"}, headers=OWN).status_code

    enter(client, page, "observer")
    assert asked("master") == 403, "it has no such cookie"
    enter(client, page, "participant")
    enter(client, page, "observer")
    found = {role: asked(role) for role in ("participant", "observer", "alerts")}
    assert found == {"participant": 200, "observer": 403, "alerts": 403}


def test_a_button_of_another_site_does_nothing(client: TestClient, page: Page, clerk: Clerk) -> None:
    enter(client, page, "master")
    as_json = {"content-type": "application/json"}
    others = "http://evil.example", "null", f"https://{HOST}", "http://127.0.0.1:8001"
    for headers in (as_json, *(as_json | {"origin": other} for other in others)):
        assert client.post("/act", content='{"action": "stop"}', headers=headers).status_code == 403
    assert clerk.heard == []


def test_what_is_not_json_is_refused(client: TestClient, page: Page, clerk: Clerk) -> None:
    enter(client, page, "master")
    as_json = "application/json"
    for content, kind in (('{"action": "stop"}', "text/plain"), ("{", as_json), ("[" * 100_000, as_json)):
        answer = client.post("/act", content=content, headers=OWN | {"content-type": kind})
        assert answer.status_code == 400, answer.text
    assert client.post("/act", json={"action": "note", "text": "x" * 10_000}, headers=OWN).status_code == 400
    assert client.post("/act", content=b" " * 300_000, headers=OWN).status_code == 400
    assert clerk.heard == []


def test_each_role_sees_its_own_page(client: TestClient, page: Page) -> None:
    text = enter(client, page, "participant")
    assert 'data-act="stop"' in text and 'data-act="inject"' not in text and "outage-box" not in text
    assert 'data-act="inject"' in enter(client, page, "master") and "data-act" not in enter(client, page, "observer")
    shown = for_role(view(), "participant", [NewsView(1, "person", "Bob: I see it")])
    told = json.dumps(shown, default=vars)
    assert "rank-kill" in told, "what is over is told"
    hidden = "silent-hang|spot-evict|silence|Is everybody back|first week|by faults|21.3|Rehearsing"
    assert not [each for each in hidden.split("|") if each in told]


def test_each_phase_of_an_outage_has_the_name_and_the_colour_of_the_report(client: TestClient, page: Page) -> None:
    style = client.get("/page.css").text
    assert set(PHASES) == {"running", "standstill", *TIMELINE_PHASES}
    for phase in PHASES:
        assert re.search(rf"\.p-{phase}\b[^{{}}]*{{ fill: var\(--\w+\); }}", style), phase
    text = enter(client, page, "master")
    assert json.loads(text.split("data-phases='")[1].split("'")[0]) == list(PHASES)
    page.hub.publish(view(phase="first_step", outage=[("reschedule", 1.5), ("my.own_phase", 0.5)]), [])
    until(lambda: page.hub.view and page.hub.view.phase == "first_step", "the new view")
    told = json.loads(page.hub.text("master"))
    assert told["phase"] == "First new step"
    assert told["outage"] == [["reschedule", "Wait for capacity", 1.5], ["my.own_phase", "My own phase", 0.5]]


def test_logs_are_plain_text_of_the_newest_node_and_no_link_is_followed(
    client: TestClient, page: Page, tmp_path: pathlib.Path
) -> None:
    enter(client, page, "observer")
    answer = client.get("/log", params={"node": "node0"})
    assert answer.headers["content-type"].startswith("text/plain") and answer.text.startswith("new ")
    assert "\x1b" not in answer.text and "\u202e" not in answer.text
    for node in ("../undo", "node9", "node0.1"):
        assert client.get("/log", params={"node": node}).status_code == 404
    (tmp_path / "logs" / "node1.1.log").symlink_to("/etc/passwd")
    assert "root" not in newest_words(tmp_path, "node1")


def test_alertmanager_and_plain_json_are_taken(client: TestClient, page: Page, clerk: Clerk) -> None:
    token = {"authorization": f"Bearer {page.access.tokens['alerts']}"}
    first = {"status": "firing", "fingerprint": "f1", "labels": {"alertname": "Stalled"}}
    first |= {"annotations": {"summary": "no step"}}
    second = {"status": "resolved", "fingerprint": "f2", "labels": {"alertname": "Slow"}, "annotations": {}}
    message = {"version": "4", "status": "firing", "alerts": [first, second]}
    assert client.post("/alerts", json=message, headers=token).json() == {"taken": 2}
    assert client.post("/alerts", json={"name": "Disk", "fingerprint": "f3"}, headers=token).status_code == 200
    until(lambda: len(clerk.heard) == 3, "all three")
    stalled, slow = AlertNews("Stalled", "firing", "no step", "f1"), AlertNews("Slow", "resolved", "", "f2")
    assert clerk.heard == [stalled, slow, AlertNews("Disk", "firing", "", "f3")]
    ranks = [{"labels": {"alertname": "Stalled", "rank": rank}} for rank in ("1", "2", "1")]
    told = [each.fingerprint for each in alerts.read({"alerts": ranks})]
    assert told[0] == told[2] != told[1], "those without a fingerprint are told apart by their labels"
    assert alerts.read({"name": "Stalled"})[0].fingerprint == ""


@pytest.mark.parametrize(
    "message", [{}, [], {"alerts": []}, {"alerts": [1]}, {"name": ""}, {"name": "x", "status": "maybe"}, 7, None]
)
def test_what_is_no_alert_is_told(message: object) -> None:
    with pytest.raises(ValueError):
        alerts.read(message)


def test_another_address_needs_tls_and_a_token_is_known_by_its_role_alone(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError, match="--tls-cert and --tls-key"):
        PageAddress("0.0.0.0").check()
    with pytest.raises(UsageError, match="belong together"):
        PageAddress("0.0.0.0", certificate=tmp_path / "c").check()
    PageAddress("127.0.0.1").check()
    PageAddress("::1").check()
    access = Access(frozenset({"127.0.0.1"}))
    assert len(set(access.tokens.values())) == 4
    assert [access.role_of(token) for token in access.tokens.values()] == list(access.tokens)
    assert access.role_of(access.tokens["master"][:-1]) is None and "master" not in repr(access)


def test_with_a_certificate_the_page_speaks_tls_alone(tmp_path: pathlib.Path, clerk: Clerk) -> None:
    machine.need("openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    named = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *named]
    subprocess.run([*made, "-keyout", key, "-out", certificate, "-days", "1"], check=True, capture_output=True)
    with serving(PageAddress(certificate=certificate, key=key), clerk.desk, tmp_path, lambda narrow: "") as served:
        assert served.address.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=certificate)
        with urllib.request.urlopen(served.url("observer"), context=trusted) as answer:
            assert "; Secure" in answer.headers["set-cookie"]
        with pytest.raises(OSError):
            urllib.request.urlopen(served.url("observer").replace("https", "http"))


GET = "GET /{path}?token={token} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
ASKED = GET.format(path="page.css", token="")
HALF_A_NOTE = "POST /notes HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"


@pytest.fixture
def served(clerk: Clerk, tmp_path: pathlib.Path) -> Iterator[Served]:
    with serving(PageAddress(), clerk.desk, tmp_path, lambda narrow: "x" * (0 if narrow else 2**25)) as served:
        yield served


def connected(served: Served, asked: str = "") -> socket.socket:
    host, _, port = served.address.removeprefix("http://").rpartition(":")
    connection = socket.create_connection((host, int(port)), 5)
    connection.sendall(asked.encode())
    return connection


def closed(connection: socket.socket, within_s: float, word: bytes = b"") -> bool:
    """Whether the page ends it, though a word is sent again and again."""
    until = time.monotonic() + within_s
    connection.settimeout(0.1)
    with contextlib.suppress(OSError):
        while time.monotonic() < until:
            connection.sendall(word)
            with contextlib.suppress(TimeoutError):
                if not connection.recv(2**16):
                    return True
        return False
    return True


def descriptors() -> int:
    """Open files and connections of this process, the page's among them."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("first", ["", ASKED], ids=["at-once", "after-a-whole-request"])
@pytest.mark.parametrize("begin", ["", "GET / HT", HALF_A_NOTE, HALF_A_NOTE + "Authorization: Bearer {token}\r\n\r\n"])
def test_a_request_has_a_limited_time(first: str, begin: str, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASKS_WITHIN_S", "ANSWERED_WITHIN_S"):
        monkeypatch.setattr(connection_limits, name, 0.5)
    with connected(served, first) as connection:
        assert not first or connection.recv(2**16).startswith(b"HTTP/1.1 200")
        connection.sendall(begin.format(token=served.access.tokens["master"]).encode())
        assert closed(connection, 4, b"a" if begin else b"")


def test_who_takes_no_answer_is_left(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "ANSWERED_WITHIN_S", 0.5)
    with connected(served, GET.format(path="chart", token=served.access.tokens["observer"])) as connection:
        time.sleep(2)
        received = 0
        with contextlib.suppress(OSError):
            while part := connection.recv(2**20):
                received += len(part)
        assert received < 2**25


def test_streams_stay_open_and_are_limited_and_others_get_in(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred connections at once: of who has a token, and of who has none and keeps on asking."""
    for name in ("ASKS_WITHIN_S", "ANSWERED_WITHIN_S"):
        monkeypatch.setattr(connection_limits, name, 5.0)  # a stall of a busy machine is shorter
    asked, before = GET.format(path="events", token=served.access.tokens["observer"]), descriptors()
    with contextlib.ExitStack() as held:
        opened = list[socket.socket]()
        for _ in range(STREAMS_MAX + 50):
            stream = held.enter_context(connected(served, asked))
            opened += [stream] if stream.recv(100).startswith(b"HTTP/1.1 200") else []
        assert len(opened) == served.hub.streams == STREAMS_MAX
        for _ in range(150):
            asking = held.enter_context(connected(served))
            with contextlib.suppress(OSError):
                asking.sendall(ASKED.encode() + b"GET")
        time.sleep(5.5)
        mine = STREAMS_MAX + 50 + 150
        assert descriptors() - before - mine <= STREAMS_MAX + connection_limits.OTHERS_MAX
        with connected(served, ASKED) as another:
            assert another.recv(100).startswith(b"HTTP/1.1 200")
        assert served.hub.streams == STREAMS_MAX
        assert not any(closed(each, 0.01) for each in opened[::10])


def test_streams_survive_remarks_and_news_at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred wait; each waits so shortly that its remark and the next view come together again and again."""
    monkeypatch.setattr("harness.gameday.page.hub.WAIT_S", 0.02)
    hub = Hub()

    async def read() -> tuple[int, str]:
        messages = [message async for message in hub.stream("observer")]
        return sum(message.startswith("id: ") for message in messages), messages[-1]

    async def day() -> list[tuple[int, str]]:
        hub.start()
        readers = [asyncio.create_task(read()) for _ in range(STREAMS_MAX)]
        for _ in range(40):
            hub.publish(view(), [])
            await asyncio.sleep(0.021)
        hub.close_soon()
        return await asyncio.wait_for(asyncio.gather(*readers), 60)

    for views, last in asyncio.run(day()):
        assert views > 1 and last == "event: over\ndata: null\n\n"


def test_a_burst_of_silent_connections_is_limited_and_keeps_nobody_from_stop(
    served: Served, clerk: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each newcomer of a burst closes another one: one that is being closed already makes no room."""
    monkeypatch.setattr(connection_limits, "ASKS_WITHIN_S", 600.0)
    note, before = '{"action": "stop"}', descriptors()
    asked = HALF_A_NOTE.replace("99", str(len(note))) + "Authorization: Bearer {token}\r\n\r\n"
    asked = asked.format(token=served.access.tokens["participant"]) + note
    host, _, port = served.address.removeprefix("http://").rpartition(":")
    with contextlib.ExitStack() as held:
        for _ in range(4 * connection_limits.OTHERS_MAX):
            silent = held.enter_context(socket.socket())
            silent.setblocking(False)
            silent.connect_ex((host, int(port)))

        def answered() -> bool:
            with contextlib.suppress(OSError), connected(served, asked) as honest:  # some of the burst come behind it
                return honest.recv(100).startswith(b"HTTP/1.1 200")
            return False

        until(answered, "an answer for who asks")
        assert {each.action for each in clerk.heard if isinstance(each, Ask)} == {"stop"}
        most = before + 5 * connection_limits.OTHERS_MAX + 1  # ours and the page's
        until(lambda: descriptors() <= most, lambda: f"{descriptors() - most} to be closed")


def test_a_burst_of_streams_is_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STREAMS_MAX", 2)
    stream = GET.format(path="events", token=served.access.tokens["observer"])
    with contextlib.ExitStack() as held:
        many = [held.enter_context(connected(served)) for _ in range(30)]
        for each in many:
            each.sendall(stream.encode())
        assert sum(each.recv(100).startswith(b"HTTP/1.1 200") for each in many) == 2


def test_the_report_is_there_once_the_day_is_judged_and_nothing_else_is(
    client: TestClient, page: Page, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "rehearsals" / "a").mkdir(parents=True)
    for path in ("report.html", "rehearsals/a/report.html", "plan.json"):
        (tmp_path / path).write_text(f"<p>{path}</p>")
    (tmp_path / "rehearsals" / "b").symlink_to("/etc")
    assert client.get("/report/report.html").status_code == 403
    enter(client, page, "observer")
    page.hub.publish(view(), [])
    assert client.get("/report/report.html").status_code == 404, "it is not judged yet"
    page.hub.publish(view(job_over=True, verdict="pass", report="x/report.html"), [])
    for path in ("report.html", "rehearsals/a/report.html"):
        answer = client.get(f"/report/{path}")
        assert answer.text == f"<p>{path}</p>" and "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    others = "plan.json", "rehearsals/b/report.html", "rehearsals/../plan.json", "../report.html", "%2e%2e/report.html"
    for path in others:
        assert client.get(f"/report/{path}").status_code == 404, path

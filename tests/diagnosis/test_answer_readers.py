"""The readers, each on an example of its form. `real/` holds files that PyTorch 2.13 wrote."""

import json
import pathlib
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.diagnosis.answer import Answer, AnswersError, Decision, Kind, Suspect
from harness.diagnosis.readers.contract import File, build_reader, read_answers, reader_names
from harness.errors import UsageError

REAL = pathlib.Path(__file__).parent / "real"
NS = 10**9


def read(reader: str, content: Any, name: str = "f.json") -> list[Answer]:
    text = content if isinstance(content, bytes | str) else json.dumps(content)
    return list(build_reader(reader).read([File(name, text if isinstance(text, bytes) else text.encode())]))


def test_torchelastic_names_the_gpu_by_the_path_and_leaves_out_those_that_lost_a_peer(tmp_path: pathlib.Path) -> None:
    (answer,) = read_answers(REAL, build_reader("torchelastic"))
    assert answer.who == (Suspect(node="node1", gpu=0),) and answer.why == "IndexError: index out of range"
    assert answer.kind is Kind.CRASH and answer.at == 1796023637 * NS
    said = {"a": ("connection closed by peer", 20), "b": ("CUDA error: ECC", 10), "c": ("reset by peer", 30)}
    for node, (message, second) in said.items():
        folder = tmp_path / node / "attempt_0" / "1"
        folder.mkdir(parents=True)
        told = {"message": {"message": message, "extraInfo": {"timestamp": str(second)}}}
        (folder / "error.json").write_text(json.dumps(told))
    found = read_answers(tmp_path, build_reader("torchelastic"))
    assert [(each.kind, each.who) for each in found] == [(Kind.GPU, (Suspect(node="b", gpu=1),))]


@pytest.mark.parametrize(("reader", "rank"), [("nvrx", 1), ("lm_resiliency", 2)])
def test_what_a_real_watcher_wrote_names_the_rank(reader: str, rank: int) -> None:
    """`CollectiveAnalyzer` of NVRx at d8686d9, of the dumps in `real/recorder`, without a language model; the watching
    daemons of lm_resiliency 0.2.0, over gloo, when rank 2 of four was stopped by SIGSTOP."""
    (answer,) = read(reader, (REAL / f"{reader}.json").read_bytes())
    assert (answer.kind, answer.who, answer.decision) == (Kind.HANG, (Suspect(rank=rank),), None)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_the_flight_recorder_names_the_rank_that_is_behind(form: str, tmp_path: pathlib.Path) -> None:
    """Rank 0 waits in the second all-reduce, which rank 1 never began."""
    for path in (REAL / "recorder").iterdir():
        content = path.read_bytes()
        as_json = json.dumps(pickle.loads(content), default=str).encode()
        (tmp_path / path.name).write_bytes(content if form == "pickle" else as_json)
    (answer,) = read_answers(tmp_path, build_reader("flight_recorder"))
    assert (answer.kind, answer.who, answer.at) == (Kind.HANG, (Suspect(rank=1),), None)


def test_the_flight_recorder_of_a_job_that_goes_on_says_nothing() -> None:
    dump = (REAL / "recorder" / "trace_rank_1").read_bytes()
    assert list(build_reader("flight_recorder").read([File("t_0", dump), File("t_1", dump)])) == []


DOUBLED = b"".join(b"]q" + bytes([n]) + b"(h" + bytes([n - 1, ord("h"), n - 1]) + b"e" for n in range(1, 60))


@pytest.mark.parametrize("content", [
    b"\x80\x05.", b"\x80\x04cos\nsystem\n(S'true'\ntR.", b"{", b"\x80\x05r\xff\xff\xff\x7f.",
    b"\x80\x04]q\x00" + DOUBLED + b".",
], ids=["empty", "a call", "torn", "a large memo", "a list of lists of itself"])  # fmt: skip
def test_an_evil_dump_does_nothing(content: bytes) -> None:
    try:
        assert read("flight_recorder", content, "t_0") == []
    except AnswersError as error:
        assert "t_0" in str(error)


def test_kubernetes_conditions_and_taints() -> None:
    at = "2026-11-30T06:51:40Z"
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": at}
    fine = {"type": "MemoryPressure", "status": "False", "lastTransitionTime": at}
    own = {"type": "GpuXid79", "status": "True", "reason": "XID 79", "lastTransitionTime": at}
    away = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": at}
    taints = [away, {"key": "nvidia.com/gpu"}]
    node = {"metadata": {"name": "n1"}, "status": {"conditions": [ready, fine, own]}, "spec": {"taints": taints}}
    found = read("kubernetes", {"kind": "List", "items": [node]})
    assert [each.kind for each in found] == [Kind.CRASH, Kind.GPU, Kind.CRASH]
    assert {each.who for each in found} == {(Suspect(node="n1"),)} and {each.at for each in found} == {1796021500 * NS}
    assert found[0].decision is Decision.RESTART_ELSEWHERE


def test_slurm_drain_reasons_with_host_lists() -> None:
    broken = "2026-11-30T08:51:40|root|gpu[01-03,7],login|NHC: NVLink error | see ticket\n"
    silent = "Unknown|root|n1|Not responding\n"
    with pytest.raises(AnswersError, match=r"f.txt:2: '' is no list of hosts"):
        read("slurm", f"{broken}\n{silent}", "f.txt")
    first, second = read("slurm: {utc_offset_h: 2}", broken + silent, "f.txt")
    assert [each.node for each in first.who] == ["gpu01", "gpu02", "gpu03", "gpu7", "login"]
    assert (first.kind, first.at, second.kind, second.at) == (Kind.GPU, 1796021500 * NS, Kind.CRASH, None)


@pytest.mark.parametrize("nodes", ["n[1-", "n[0-99999999]", "", "n[5-1]", "a[1]b[2", "n" * 20_000])
def test_bad_host_lists_are_refused(nodes: str) -> None:
    with pytest.raises(AnswersError, match="hosts"):
        read("slurm", f"Unknown|root|{nodes}|x", "f.txt")


def test_prometheus_alerts_of_both_forms() -> None:
    labels = {"alertname": "GpuThermalThrottle", "instance": "n1:9400", "gpu": "3"}
    told = {"labels": labels, "annotations": {"summary": "hot"}, "startsAt": "2026-11-30T06:51:40Z", "status": "firing"}
    resolved = told | {"status": "resolved"}
    (answer,) = read("prometheus", {"version": "4", "alerts": [told, resolved]})
    assert (answer.kind, answer.who, answer.at) == (Kind.GPU, (Suspect(node="n1", gpu=3),), 1796021500 * NS)
    own = {"labels": {"alertname": "a", "kind": "straggler", "decision": "evict-node", "rank": "5"}, "state": "firing"}
    (answer,) = read("prometheus", {"status": "success", "data": {"alerts": [own, own | {"state": "pending"}]}})
    assert (answer.kind, answer.who, answer.decision) == (Kind.STRAGGLER, (Suspect(rank=5),), Decision.EVICT_NODE)


def test_nvrx_attribution() -> None:
    item = {"raw_text": "", "attribution_text": "rank 3 hung in an all-reduce", "primary_issues": ["NCCL timeout"]}
    recorder = {"result": {"analysis_text": "", "hanging_ranks": "hanging ranks: [3, 4]"}}
    told = {"status": "completed", "result": {"module": "log_fr_analyzer", "result": [item], "fr": recorder}}
    (answer,) = read("nvrx", told | {"recommendation": {"action": "RESTART", "source": "log_analyzer"}})
    assert (answer.kind, answer.decision) == (Kind.HANG, Decision.RESTART_IN_PLACE)
    assert answer.who == (Suspect(rank=3), Suspect(rank=4))
    with pytest.raises(AnswersError, match="no result"):
        read("nvrx", {"analysis_text": ""})


def test_lm_resiliency_localization() -> None:
    sdc = {"training_iteration": 37, "failed_ranks": [3], "kind": "sdc", "scope": "rank", "sources": ["hidden.output"]}
    slow = {"failed_ranks": [1], "kind": "straggler", "straggler_type": "communication", "scope": "node"}
    slow |= {"endpoint_id": "n7", "confidence": 0.75}  # type: ignore[dict-item]
    group = {"failed_ranks": [0, 1, 2], "kind": "data_stall", "scope": "peer_group"}
    switch = {"kind": "fabric:switch", "switch": "leaf-1", "failed_ranks": [], "blast_radius": [0, 1]}
    daemon = {"kind": "oob_daemon_failure", "failed_ranks": [2], "scope": "rank", "sources": ["oob_daemon"]}
    found = read("lm_resiliency", {"campaign": "c", "reports": [sdc, slow, group, switch, daemon]})
    kinds = [Kind.CORRUPTION, Kind.NETWORK, Kind.HANG, Kind.NETWORK, Kind.UNKNOWN]
    assert [each.kind for each in found] == kinds
    assert [each.who for each in found] == [(Suspect(rank=3),), (Suspect(node="n7"),), (), (), (Suspect(rank=2),)]
    assert (found[0].step, found[0].decision, found[1].sure) == (37, Decision.ROLL_BACK, 0.75)


def test_dlrover_events() -> None:
    event = {"event_id": "e", "event_time": "2026-11-30T14:51:40.5", "target": "dlrover-agent", "event_type": "INSTANT"}
    lines = [
        event | {"name": "#process_fail", "content": {"node_rank": 2}},
        event | {"name": "#worker_no_heartbeat", "content": {"pod_name": "job-worker-1", "timeout": 600}},
        event | {"name": "#fault_detect", "content": {"reason": "training hang"}},
        event | {"name": "#rendezvous", "content": {}},
    ]
    text = "\n".join(["not JSON", *map(json.dumps, lines)])
    found = read("dlrover: {utc_offset_h: 8}", text, "events_0_1.log")
    assert [(each.kind, each.who) for each in found] == [
        (Kind.CRASH, (Suspect(node="node2"),)),
        (Kind.HANG, (Suspect(node="job-worker-1"),)),
        (Kind.HANG, ()),
    ]
    assert found[0].at == 1796021500 * NS + NS // 2


def test_lines_of_any_log() -> None:
    reader = r"lines: {regex: '^(?P<at>\S+) rank (?P<rank>\d+) (?P<kind>\w+)', decision: stop}"
    text = "2026-11-30T06:51:40Z rank 3 straggler\nnoise\n2026-11-30T06:51:41Z rank 4 overheated"
    first, second = read(reader, text, "x.log")
    assert first == Answer(Kind.STRAGGLER, (Suspect(rank=3),), Decision.STOP, "", 1796021500 * NS)
    assert (second.kind, second.who) == (Kind.STRAGGLER, (Suspect(rank=4),))
    with pytest.raises(AnswersError, match=r"x.log:1.*Expected `int` <= 131071"):
        read(reader, "2026-11-30T06:51:40Z rank 999999 x", "x.log")


def test_a_slow_expression_is_given_up() -> None:
    with pytest.raises(AnswersError, match="takes too long"):
        read("lines: {regex: '^(?:(?:a|b|ab)+)+ x$'}", "\n".join(["ab" * 500 + " x!"] * 30), "x.log")


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        ("torchelastik", "did you mean torchelastic?"),
        ("lines", "regex: Field required"),
        ("lines: {regex: '('}", "is not a regular expression"),
        ("lines: {regex: '(?P<x>a)'}", "may have the groups"),
        ("slurm: {utc_offset_h: 99}", "less than or equal to 14"),
        ("slurm: {zone: 1}", "Extra inputs are not permitted"),
        ("[", "--read ["),
    ],
)
def test_a_reader_that_cannot_be_built(reader: str, said: str) -> None:
    with pytest.raises(UsageError, match="--read") as caught:
        build_reader(reader)
    assert said in str(caught.value)


@pytest.mark.parametrize("reader", sorted({*reader_names()} - {"diagnosis", "lines", "slurm", "dlrover"}))
def test_what_is_not_of_the_form_is_refused(reader: str) -> None:
    for content in (b"", b"null", b"[" * 100_000, b"\xff"):
        if content != b"null" or reader not in ("flight_recorder", "kubernetes"):
            with pytest.raises(AnswersError):
                read(reader, content, "rank_0.json")


KEYS = [
    "alerts",
    "annotations",
    "collective_seq_id",
    "conditions",
    "confidence",
    "data",
    "entries",
    "extraInfo",
    "failed_ranks",
    "fr",
    "gpu",
    "hanging_rank_list",
    "items",
    "key",
    "kind",
    "labels",
    "message",
    "metadata",
    "name",
    "primary_issues",
    "process_group",
    "rank",
    "reports",
    "result",
    "scope",
    "spec",
    "startsAt",
    "status",
    "taints",
    "type",
]
JSON = st.recursive(
    st.sampled_from([None, True, False, "hang"])
    | st.integers(-5, 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=25,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(reader_names()), JSON)
def test_no_json_raises_anything_but_its_error(reader: str, value: Any) -> None:
    try:
        for answer in read("lines: {regex: a}" if reader == "lines" else reader, value, "n/0/rank_0.json"):
            assert isinstance(answer, Answer) and isinstance(answer.who, tuple) and isinstance(answer.why, str)
    except AnswersError:
        pass


def test_a_missing_file_a_link_and_an_empty_folder_are_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "empty").mkdir()
    for name in ("none", "link", "empty"):
        with pytest.raises(AnswersError, match=str(tmp_path / name)):
            read_answers(tmp_path / name, build_reader("diagnosis"))

"""The command line: what it says, what it lists, and how it ends."""

import errno
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import report_runs
import typer
from command_line import chaos, refused
from timeline.test_window import in_sequence

import harness.report
from harness import extras
from harness.backends.contract import Capability, Verb, load_backend
from harness.backends.local.backend import LocalBackend
from harness.cli import listing, machine, main, output
from harness.errors import CannotRunError, ChaosError, UsageError
from harness.faults.contract import fault_names
from harness.gameday import day_command
from harness.gameday.day import find_day
from harness.gate.run_figures import Figures
from harness.log import untrusted_files
from harness.log.journal import JOURNAL, Journal, is_closed
from harness.node import owner_names, processes
from harness.plan import capabilities
from harness.run import undo

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "scenarios"
EVIL = "\x1b[31m\u202e[red]\x9b2J"


@pytest.fixture
def reports(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two judged runs, and one that says nice things to terminals."""
    makers: dict[str, Callable[[], Any]] = {
        "a-1": report_runs.spot_evict,
        "a-2": report_runs.never_recovered,
        "evil": report_runs.hostile,
    }
    for name, make in makers.items():
        (tmp_path / name / "events").mkdir(parents=True)
        (tmp_path / name / "plan.json").write_text("{}")
        harness.report.write_reports(make(), tmp_path / name)
    return tmp_path


@pytest.mark.slow
def test_help_says_what_it_is_for_and_every_command_what_it_does() -> None:
    first, whole = chaos("--help").output, chaos("--help", "--all").output
    assert chaos().output.strip() == first.strip()
    assert len(main.FIRST_PAGE) <= 14, "whoever looks for the first time reads them all"
    assert "Break a distributed training on purpose" in whole and "chaos run spot-evict" in whole
    app: Any = typer.main.get_command(main.make_app())
    for name in app.commands:
        about = app.commands[name].load().help.partition("\n\n")[0].replace("\n", " ")
        assert about and app.commands[name].help == about, f"the list says of {name} what it says of itself"
        assert (f"│ {name} " in first) == (name in main.FIRST_PAGE), "the others are one level down"
        own = chaos(name, "--help")
        assert own.exit_code == 0 and f" {name} " in whole and "<bool>" not in own.output + whole
    shown = chaos("gate", "merge", "--help").output
    assert "Join the gates of all shards" in shown and "--repeat" not in shown
    assert "--repeat" in chaos("gate", "--help").output


NO_SCENARIO = "no scenario, but one of the suites: name one of the scenarios that stand "


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run", "name a scenario"),
        ("run rank-kill --plan plan.json", "a stored plan has its own"),
        ("run --plan no-such-plan", "no-such-plan"),
        ("gate merge", "needs the gates of all shards"),
        ("gate pre-launch --shard 1/2 --against x", "give --against to `chaos gate merge`"),
        ("gate pre-launch --budget soon", "--budget"),
        ("gate pre-launch --shard 3/2", "--shard 3/2"),
        ("gate pre-launch --tag none", "no scenario of this suite has it"),
        ("gate pre-launch --against no-such", "no baseline 'no-such'"),
        ("baseline set x", "no gate was run yet"),
        ("gameday stop no-such-run", "no game day 'no-such-run' is running here"),
        ("gameday no-such-plan", "unknown game day 'no-such-plan'"),
        ("gameday resume no-such-run", "unknown game day 'no-such-run'"),
        ("gameday note no-such-run x", "no game day 'no-such-run' is running here"),
        ("gameday pre-launch --address 0.0.0.0", "give --tls-cert and --tls-key"),
        ("gameday pre-launch --backend moon", "moon"),
        *((f"{command} pre-launch", f"'pre-launch' is {NO_SCENARIO}in") for command in ("plan", "run", "validate")),
        *((f"{command} pre-launch", "; chaos gate pre-launch runs them all") for command in ("plan", "doctor")),
        *(
            (f"{command} {SCENARIOS}/suites/pre-launch.yaml", f"{NO_SCENARIO}here; chaos gate {SCENARIOS}/suites/")
            for command in ("plan", "doctor", "run")
        ),
        (f"plan {SCENARIOS}/gamedays/pre-launch.yaml", f"chaos gameday {SCENARIOS}/gamedays/"),
        # `--steps` is also an option of `chaos init`, which must not take it from the training.
        *(
            (f"init torchrun {words}", f"write -- before your command: chaos init -- torchrun {words}")
            for words in ("--nproc-per-node 2 train.py", "train.py --steps 20")
        ),
    ],
)
def test_what_cannot_be_is_refused_at_once(words: str, said: str, tmp_path: pathlib.Path) -> None:
    assert said in refused(*words.split(), CHAOS_REPORTS=str(tmp_path))


def test_stored_runs_are_listed_and_filtered(reports: pathlib.Path) -> None:
    listed = chaos("runs", "--reports", reports)
    assert listed.exit_code == 0 and "a-1" in listed.output and "evil" in listed.output
    history = chaos("history", "--reports", reports).output.splitlines()
    assert history[0].split() == [*listed.output.splitlines()[0].split(), "recovery", "waste"]
    rows = json.loads(chaos("runs", "--verdict", "fail", "--json", "--reports", reports).stdout)
    assert [row["run_id"] for row in rows] == ["a-2"]
    assert "no run matches" in chaos("runs", "--scenario", "none", "--reports", reports).output
    assert chaos("runs", "--since", "1h", "--json", "--reports", reports).exit_code == 0
    for words in (["runs"], ["runs", "--json"], ["show", "evil"], ["show", "evil", "--json"]):
        shown = chaos(*words, "--reports", reports).output
        assert not {"\x1b", "\u202e", "\x9b"} & set(shown), f"{words}: no stored run steers the terminal"
    assert "nosuch has no stored run: choose one of:" in chaos("history", "nosuch", "--reports", reports).output
    assert "did you mean spot-evict?" in chaos("history", "spot-evit", "--reports", reports).output
    assert "no run is stored in" in chaos("history", "x", "--reports", reports / "none").output
    assert chaos("history", "nosuch", "--json", "--reports", reports).exit_code == 0
    name = "checkpoint-restore-slow-20261121-120000-1a2b"
    (reports / "a-1").rename(reports / name)
    for width in ("40", "80"):
        assert name in chaos("runs", "--reports", reports, COLUMNS=width).output, "ids are listed whole"


def test_a_stored_run_is_shown_without_its_event_log_and_one_that_was_not_judged_says_how_to(
    reports: pathlib.Path,
) -> None:
    shown = chaos("show", "a-1", "--reports", reports)
    assert shown.exit_code == 0 and "PASS" in shown.output and "Recovery time" in shown.output
    assert chaos("show", "a-2", "--reports", reports).exit_code == 0, "showing is no judging"
    values = json.loads(chaos("show", "a-1", "--json", "--reports", reports).stdout)
    assert values["expectations"][0]["bound_value"] == 60.0
    assert chaos("show", "a-1", "--markdown", "--reports", reports).output.startswith("# ✅ Pass")
    (reports / "a-1" / "report.json").unlink()
    assert f"chaos score {reports}/a-1" in refused("show", "a-1", "--reports", reports)
    journal = Journal(reports / "a-1")
    found = chaos("show", "a-1", "--reports", reports)
    journal.release()
    newest = f"the newest that was judged: chaos show {reports / 'evil'}"
    assert str(found.exception).startswith(f"{reports / 'a-1'} is at work, and is judged at its end; {newest}")


def test_one_rehearsal_of_a_job_can_be_judged(tmp_path: pathlib.Path) -> None:
    history, logs = in_sequence(1)
    folder = history.write(tmp_path / "job-1", logs)
    judged = chaos("score", "job-1", "--rehearsal", "first", "--reports", tmp_path)
    assert judged.exit_code in (0, 3), judged.output
    told = json.loads((folder / "rehearsal-first" / "report.json").read_text())
    assert [fault["id"] for fault in told["faults"]] == ["fault1"]
    assert not (folder / "report.json").exists()  # that of the whole job is another one
    assert "first" in refused("score", "job-1", "--rehearsal", "third", "--reports", tmp_path)


def test_a_time_is_a_date_or_how_long_ago() -> None:
    for text, ago_s in (("2h", 7200), ("7d", 604_800), ("1.5 m", 90), ("1w", 604_800)):
        assert listing.parse_since(text, 1_000_000) == 1_000_000 - ago_s
    assert listing.parse_since("1970-01-02T00:00:00+00:00", 0) == 86_400
    with pytest.raises(UsageError, match="--since soon: write"):
        listing.parse_since("soon", 0)


def ended(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command line whose command raises this."""

    def app(**_: object) -> None:
        raise error

    monkeypatch.setattr(main, "make_app", lambda *_: app)
    with pytest.raises(SystemExit) as end:
        main.main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize(
    "error", [KeyError("x"), AssertionError(), RecursionError("deep"), MemoryError(), ImportError("no numpy")]
)
def test_what_nobody_expected_is_one_line_and_exit_code_3(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(output.err, "_file", None)
    assert ended(error, monkeypatch) == 3
    said = capsys.readouterr().err
    assert f"unexpected {type(error).__name__}" in said and "Traceback (most" not in said
    (kept,) = tmp_path.glob("chaos-error-*.txt")
    assert str(kept) in said.replace("\n", "") and "Traceback (most" in kept.read_text()


DENIED, NO_RIGHT, READ_ONLY = (
    (code, os.strerror(code), "/runs/a.json") for code in (errno.EACCES, errno.EPERM, errno.EROFS)
)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (UsageError(f"a {EVIL}"), 2, "[red]"),
        (PermissionError(*DENIED), 3, "error: Permission denied: /runs/a.json\n"),
        (OSError(*NO_RIGHT), 3, "error: Operation not permitted: /runs/a.json\n"),
        (OSError(*READ_ONLY), 3, "error: Read-only file system: /runs/a.json\n"),
        (ModuleNotFoundError(name="harness.gate"), 4, "this installation lacks harness.gate, which the command needs"),
    ],
)
def test_each_error_is_one_line_has_its_exit_code_and_steers_no_terminal(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output.err, "_file", None)
    assert ended(error, monkeypatch) == code
    told = capsys.readouterr().err
    assert (told == said if said.endswith("\n") else said in told) and not {"\x1b", "\u202e", "\x9b"} & set(told)


def test_a_full_disk_is_named_by_the_folder_of_the_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=len(str(place)) * 2**20))
    monkeypatch.setattr(output.err, "_file", None)
    chaos("runs", "--reports", tmp_path / "runs")
    full = errno.ENOSPC, os.strerror(errno.ENOSPC)
    for place, file in ((str(tmp_path / "runs"), []), ("/other/a.json", ["/other/a.json"])):
        assert ended(OSError(*full, *file), monkeypatch) == 3
        said = f"error: {full[1]}: {place} ({len(place)} MiB free on its disk)\n"
        assert capsys.readouterr().err == said


def test_a_verdict_is_told_also_where_no_report_can_be_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, logs = in_sequence(1)
    folder = history.write(tmp_path / "job-1", logs)
    usual = chaos("score", "job-1", "--reports", tmp_path)
    (folder / "report.html").unlink()

    def refused(*_: object, **more: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(folder / "report.json"))

    monkeypatch.setattr(untrusted_files, "replace", refused)
    judged = chaos("score", "job-1", "--reports", tmp_path)
    assert judged.exit_code == usual.exit_code and judged.stdout == usual.stdout.split("Report: ")[0]
    assert f"note: the report cannot be written in {folder}: Read-only file system" in judged.stderr.replace("\n", "")
    assert isinstance(chaos("report", "job-1", "--reports", tmp_path).exception, OSError), "here that is all there is"


HERE, FROM_PIP = f"pip install -e '{ROOT}[docker]'", "pip install './chaos_harness-7-py3-none-any.whl[docker]'"
CLONED: dict[str, Any] = {"url": "https://example.org/it", "vcs_info": {"vcs": "git"}}


@pytest.mark.parametrize(
    ("root", "noted", "command"),
    [
        (ROOT, None, HERE),
        ("/none", None, FROM_PIP),
        ("/none", {"url": "file:///src/it", "dir_info": {}}, "pip install 'chaos-harness[docker] @ file:///src/it'"),
        ("/none", CLONED, "pip install 'chaos-harness[docker] @ git+https://example.org/it'"),
    ],
)
def test_an_extra_is_installed_from_where_the_harness_came(
    root: str, noted: dict[str, Any] | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = SimpleNamespace(read_text=lambda name: json.dumps(noted) if noted else None)
    monkeypatch.setattr(extras, "_ROOT", pathlib.Path(root))
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: kept)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "7")
    assert extras.how_to_install("docker") == command


def test_a_broken_installation_is_no_failed_run(tmp_path: pathlib.Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('broken')")
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "harness", "runs"], capture_output=True, text=True, env=env, cwd=tmp_path
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("error: unexpected ImportError: broken") and "Traceback (most" not in done.stderr


@pytest.mark.parametrize("words", ["--help", "list", "list --json", "validate scenarios/spot-evict.yaml"])
def test_what_is_asked_first_loads_no_judge(words: str) -> None:
    script = "import sys; from harness.cli.main import make_app; make_app()(standalone_mode=False); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script, *words.split()], capture_output=True, text=True, cwd=ROOT, check=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "harness.cli.main" in loaded and {"numpy", "harness.judge.score"}.isdisjoint(loaded)


def test_who_stops_reading_gets_no_traceback() -> None:
    script = f"{sys.executable} -m harness schema | head -c 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.parametrize(
    ("folder", "text", "said"),
    [
        ("x", "scenarios: [no-such]\n", "a.yaml:4:13: scenarios.0: unknown scenario"),
        ("x", "entries:\n  - {scenario: no-such}\n", "unknown scenario 'no-such'"),
        ("suites", "", "scenarios"),
        ("gamedays", "", "entries"),
        ("x", "entries: [{strike: pause, lasts: 2h}]\n", "at most 1h"),
    ],
)
def test_mistakes_in_suites_and_plans_are_told(folder: str, text: str, said: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / folder / "a.yaml"
    path.parent.mkdir()
    path.write_text(f"version: 1\nname: a\ntitle: A\n{text}")
    (path.parent / "blindness-check.yaml").write_text((SCENARIOS / "suites" / "blindness-check.yaml").read_text())
    assert said in refused("validate", path, "--scenarios", SCENARIOS)
    for command in ("run", "plan", "validate", "gate"):
        wrong = f"{path.parent}: cannot be read: it is a folder; name a file in it"
        assert refused(command, path.parent) == wrong, command
    (tmp_path / "x.json").write_text(Figures(scenarios=()).to_text())
    wrong = refused("baseline", "set", "a b", "--from", tmp_path / "x.json", "--reports", tmp_path)
    assert wrong.startswith("'a b': a baseline's name has"), "as it was given"


def test_every_kind_of_file_is_validated_as_what_it_is(tmp_path: pathlib.Path) -> None:
    strikes = tmp_path / "strikes.yaml"
    strikes.write_text("version: 1\nname: a\ntitle: A\nentries: [{strike: pause}]\n")
    for path, said in (
        (SCENARIOS / "suites" / "pre-launch.yaml", "ok, a suite of 12 scenarios"),
        (SCENARIOS / "gamedays" / "pre-launch.yaml", "ok, a game day with 5 entries"),
        (SCENARIOS / "spot-evict.yaml", "ok"),
        (strikes, "ok, 1 entry for a job that runs already"),
    ):
        found = chaos("validate", path)
        assert found.exit_code == 0 and f"{path.name}: {said}" in found.output.replace("\n", "")
    assert "chaos gameday --attach docker:KEY=VALUE" in refused("gameday", strikes, "--dry-run")


def test_what_a_game_day_cannot_do_is_told_before_it_begins(tmp_path: pathlib.Path) -> None:
    day = "version: 1\nname: a\ntitle: A\nentries: [{pause: Is everybody there?}, {scenario: rank-kill}]\n"
    (tmp_path / "day.yaml").write_text(day)
    assert "entry 1 is a pause" in refused("gameday", tmp_path / "day.yaml", "--no-page", "--reports", tmp_path)
    path = tmp_path / "day.yaml"
    path.write_text("version: 1\nname: a\ntitle: A\nfault_free: false\nentries: [{scenario: rank-kill}]\n")
    shown = chaos("gameday", path, "--dry-run").output.replace("\n", " ")
    assert "no run to compare losses with" in shown and "which shows less: rank-kill." in shown


PYTHON = machine.Finding("Python", True, "")


def here(
    monkeypatch: pytest.MonkeyPatch, *verbs: Verb, missing: Mapping[Verb, str] = {}, facts: Any = (PYTHON,)
) -> None:
    local = Capability(True, "here", frozenset(verbs), missing)
    able = {"local": local, "docker": Capability(False, "no daemon", frozenset())}
    monkeypatch.setattr(machine, "examine", lambda: (facts, able))
    monkeypatch.setattr(machine, "load_backend", lambda name: load_backend("local"))  # engines may not be there


def test_doctor_says_first_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    never = {Verb.EVICT: load_backend("local").lacks()["local, root"][Verb.EVICT]}
    lacking = machine.Finding("programs", False, "one is missing", needed=False)
    here(monkeypatch, missing=never, facts=[PYTHON, lacking, machine.Finding("torch", False, "not installed")])
    monkeypatch.setattr(machine, "_undone", lambda reports, dry_run: ([], []))
    lines = chaos("doctor", "rank-kill", "--all").output.splitlines()
    assert lines[0] == "✗ 0 of 1 scenarios can run here on one backend or more"
    begun = [line.split(":")[0] for line in lines if line[0] in "✓✗" and "fault" not in line and "scenario" not in line]
    assert begun == ["✗ torch", "✗ programs", "✓ Python", "✗ backend docker", "✓ backend local"]
    assert "    ✗ kill: not there" in lines and f"    – evict: {never[Verb.EVICT]}" in lines  # no machine can do that


def test_doctor_says_which_scenarios_cannot_run_why_and_whether_this_machine_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here(monkeypatch, Verb.SIGNAL)
    for name, code, ready in (("rank-kill", 0, "Ready: chaos run rank-"), ("node-loss", 4, ""), ("", 0, "Ready for ")):
        shown = chaos("doctor", *([name] if name else []))
        assert shown.exit_code == code and shown.output.splitlines()[-1].startswith(ready)
        assert name == "rank-kill" or (
            "scenario node-loss cannot run here" in shown.output and "'kill'" in shown.output
        )
        assert "fault rank_kill" not in shown.output
    told = json.loads(chaos("doctor", "rank-kill", "node-loss", "--json").stdout)["scenarios"]
    assert [each["runs"] for each in told] == [True, False] and list(told[1]["why_not"]) == ["local"]
    assert "fault rank_kill" in chaos("doctor", "--all").output
    monkeypatch.setattr(machine, "_undone", lambda reports, dry_run: (["run a"] * dry_run, []))
    told, ready = chaos("doctor", "rank-kill").output.splitlines()[-2:]
    assert told.startswith("✗ 1 thing of killed runs: chaos heal --dry-run") and ready.startswith("Ready")
    here(monkeypatch)
    assert chaos("doctor", "rank-kill").exit_code == 4, "nothing can run"


def test_heal_names_what_it_removed_but_not_without_an_end_and_a_dry_run_touches_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reports of a run whose harness is dead, and folders that killed probes left on the same machine."""
    reports = tmp_path / "reports"
    (reports / "dead-1").mkdir(parents=True)
    (reports / "dead-1" / JOURNAL).write_text("{}\n")
    monkeypatch.setattr(undo, "backend_names", lambda: [])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    namespace, pid, start = processes.owner_text().split("-")
    monkeypatch.setattr(processes, "owner_text", lambda: f"{namespace}-{pid}-{int(start) - 1}")
    folders = [tmp_path / f"chaos-tmp-{owner_names.new_name('folder')}" for _ in range(machine.NAMED_MAX)]
    for folder in folders:
        folder.mkdir()
    shown = chaos("heal", "--dry-run", "--reports", reports)
    assert shown.exit_code == 0 and shown.output.startswith(f"would heal {len(folders) + 1} things:")
    assert "run dead-1: what its undo.jsonl says" in shown.output
    assert all(f"folder {each}" in shown.output and each.exists() for each in folders)
    assert not is_closed(reports / "dead-1")
    said = chaos("heal", "--reports", reports).output
    assert said.startswith(f"healed {len(folders) + 1} things:") and "run dead-1" in said
    assert sum(f"folder {each}\n" in said for each in folders) == machine.NAMED_MAX - 1 and "and 1 more" in said
    assert is_closed(reports / "dead-1") and not any(each.exists() for each in folders)
    assert chaos("heal", "--reports", reports).output == "nothing to heal\n"
    journal = Journal(reports / "dead-1")
    journal.record("faults.absent", {})
    journal.release()
    failed = chaos("heal", "--reports", reports)
    assert isinstance(failed.exception, ChaosError) and failed.exception.exit_code == 3 and not failed.output
    assert str(failed.exception).endswith(f"undo it by hand and remove {journal.run_dir / JOURNAL}")


def test_every_list_is_one_line_an_item_where_nobody_watches(tmp_path: pathlib.Path) -> None:
    scenarios = chaos("list").output.splitlines()
    expected = 1 + len(list((ROOT / "scenarios").glob("*.yaml"))) + 3  # suites, what lies beside them, game days
    assert len(scenarios) == expected
    assert scenarios[-3] == "suites: pre-launch (chaos gate NAME)" and "chaos gameday NAME" in scenarios[-1]
    beside = "beside the suites: blindness-check (a broken trainer that must fail before each gate)"
    assert scenarios[-2] == beside and "never resumes" in chaos("plan", "blindness-check").output
    text = (ROOT / "scenarios" / "spot-evict.yaml").read_text().replace("name: spot-evict", "name: mine")
    (tmp_path / "mine.yaml").write_text(text.replace("notice:", "notcie:"))
    assert "mine" in chaos("list", "--scenarios", tmp_path).output.split(), "a wrong fault keeps nothing from the list"
    (tmp_path / "mine.yaml").write_text(text.replace("title:", "titel:"))
    assert "mine.yaml:1:1: title: is missing" in str(chaos("list", "--scenarios", tmp_path).exception)
    faults = chaos("faults").output.splitlines()
    assert [line.split()[0] for line in faults[1 : 1 + len(fault_names())]] == list(fault_names())
    assert "    loss_percent: " in chaos("faults", "nic_loss").output
    assert isinstance(chaos("faults", "nic_los").exception, UsageError)
    rows = chaos("list", "--bounds").output.splitlines()[1:-1]
    told = json.loads(chaos("list", "--bounds", "--json").stdout)
    assert [row.split()[0] for row in rows] == [each["key"] for each in told] and "recovery_time.max" in str(told)


def test_a_dry_run_of_a_day_checks_the_steps_and_the_backend(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalBackend, "probe", lambda self: Capability(True, "here", frozenset(Verb)))
    for step_s, code, said in (
        ("", 0, "Not checked: whether 1200 steps outlast these times"),
        ("0.1", 0, "can do every fault of it here"),
        ("0.001", 2, "workload.steps: the job ends after 1,200 steps"),
    ):
        shown = chaos("gameday", "pre-launch", "--dry-run", *(["--step-time", step_s] if step_s else []))
        assert said in shown.output + str(shown.exception) and (code == 0) == (shown.exit_code == 0)
    asked: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(day_command, "new_run_id", lambda name: asked.append(name) or "run-1")
        path = shutil.copy(SCENARIOS / "gamedays" / "pre-launch.yaml", tmp_path / "Our first day.yaml")
        assert chaos("gameday", path, "--dry-run", "--scenarios", SCENARIOS).exit_code == 0
    assert asked == ["pre-launch"], "it is named after what stands in its file"
    monkeypatch.setattr(LocalBackend, "probe", lambda self: Capability(True, "here", frozenset({Verb.SIGNAL})))
    monkeypatch.setattr(capabilities, "_who_can", lambda backend, verb: "")
    refused = chaos("gameday", "pre-launch", "--dry-run")
    assert isinstance(refused.exception, CannotRunError) and "needs 'replace'" in str(refused.exception)


def test_a_day_to_resume_is_found_by_the_beginning_of_its_id(tmp_path: pathlib.Path) -> None:
    for number, name in enumerate(("day-a-1", "day-b-2", "run-3")):
        (tmp_path / name).mkdir()
        if name != "run-3":
            (tmp_path / name / "gameday.json").write_text("{}")
            os.utime(tmp_path / name / "gameday.json", (number, number))
    assert find_day("last", tmp_path).name == find_day("day-b", tmp_path).name == "day-b-2"
    assert find_day("day-a-1", tmp_path).name == "day-a-1"
    for wrong, said in (("day", "fits 2 game days"), ("run", "unknown game day 'run'")):
        with pytest.raises(UsageError, match=said):
            find_day(wrong, tmp_path)


def test_a_day_is_shown_and_listed_as_its_own_report_says(reports: pathlib.Path) -> None:
    """Judging its log as one plain run would overwrite that report, with a verdict on nothing."""
    folder = reports / "day-20260101-000000-0001"
    folder.mkdir()
    header = {"scenario": {"name": "my-day"}, "backend": "local", "seed": 1}
    (folder / "plan.json").write_text(json.dumps(header))
    (folder / "gameday.json").write_text("{}")
    (folder / "report.html").write_text("kept")
    unjudged = chaos("show", folder.name, "--reports", reports)
    assert f"judge it with: chaos score {folder}" in str(unjudged.exception)
    told = {"verdict": "inconclusive", "reasons": ["kill: \x1b[2Jwhy"], "rehearsals": []}
    (folder / "gameday-report.json").write_text(json.dumps(told))
    shown = chaos("show", folder.name, "--reports", reports)
    assert shown.exit_code == 0 and "INCONCLUSIVE" in shown.output and "\x1b[2J" not in shown.output
    rows = json.loads(chaos("runs", "--json", "--reports", reports).stdout)
    assert {row["run_id"]: row["verdict"] for row in rows}[folder.name] == "inconclusive"
    judged = chaos("score", folder.name, "--reports", reports)
    assert "gameday.json" in str(judged.exception)
    assert (folder / "report.html").read_text() == "kept"


AFTER = "a restore drill and a second restart"
KILL = "faults: [{id: k, fault: rank_kill, when: {step: 5}, target: {rank: 1}}]\n"
NO_RANK = "faults:\n  - {id: k, fault: rank_kill, when: {step: 5}, target: {rank: 7}}\n"
OWN = "workload: {{trainer: {{torchrun: train.py, args: [--save-every, '{}']}}}}\n"
EVICT = "faults: [{id: e, fault: preemption, when: {step: 5}, target: {node: 1}, via: engine}]\n"


@pytest.mark.parametrize(
    ("asked", "words", "said"),
    [
        (KILL, "", f": 4 jobs of at most ~These are the fault-free run, the run with faults, after it {AFTER}.\n"),
        (f"workload: {{restore_drill: false}}\n{KILL}", "", ": 2 jobs of at most ~run, the run with faults.\n"),
        (f"repeat: 3\n{KILL}", "", f": 10 jobs of at most ~fault-free run, 3 runs with faults, after each {AFTER}.\n"),
        (OWN.format("25"), "", "It saves as often as its own command says."),
        (OWN.format("{checkpoint_every}"), "", "A checkpoint every 20 steps."),
        (EVICT, "", "Backend local cannot do this: fault e (preemption) needs 'evict'"),
        (EVICT, "--backend kubernetes", ""),
        (NO_RANK, "", "x.yaml:5:48: faults.0.target: fault k: unknown rank 7; choose one of: 0 to 1"),
    ],
)
def test_a_plan_is_explained(asked: str, words: str, said: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "x.yaml").write_text(f"version: 1\nname: x\ntitle: X\n{asked}")
    shown = chaos("plan", tmp_path / "x.yaml", *words.split())
    told = shown.output + str(shown.exception or "")
    assert all(each in told for each in said.split("~")), told
    assert ("cannot do this" in told) is ("cannot do this" in said)
    if asked == NO_RANK:
        assert str(chaos("validate", tmp_path / "x.yaml").exception) == f"{tmp_path}/{said}" == str(shown.exception)

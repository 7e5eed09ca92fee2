"""`chaos forecast`: its answer, its page, what it refuses, and its section in the report of a run."""

import json
import pathlib
import re
import tracemalloc
from dataclasses import replace
from typing import Any

import command_line
import pytest
from forecast.stored_runs import store
from judging import verdict
from report_pages import Page
from simulator import Job, Outage, simulate

from harness.campaign.wings import sections_of
from harness.forecast.run_section import section_of
from harness.judge.verdict import Verdict
from harness.report import html_page, markdown, run_report, write_reports
from harness.report.run_report import Report

EVIL = '<script>alert("x")</script>'


def chaos(*words: object) -> Any:
    return command_line.chaos("forecast", *words)


def answer(*words: object) -> dict[str, Any]:
    done = chaos(*words, "--samples", "40", "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout, parse_constant=pytest.fail)


@pytest.fixture
def reports(tmp_path: pathlib.Path) -> pathlib.Path:
    phases = {"detect": 30.0, "startup": 200.0, "restore": 70.0, "reschedule": 60.0}
    for place, name in enumerate(("loss-1", "loss-2", "loss-3")):
        store(tmp_path, name, fault="node_loss", phases=phases | {"startup": 150.0 + 50 * place}, stall=20.0)
    return tmp_path


def test_the_answer_is_one_sentence_and_adds_up(reports: pathlib.Path) -> None:
    found = answer("loss-1", "loss-2", "loss-3", "--gpus", 2048, "--days", 20, "--reports", reports)
    said = (
        r"On 2,048 GPUs, 20 days of work takes 2\d\.\d days \(in 95 % of cases at most [\d.]+\), with a failure every "
    )
    out = found["outcome"]
    of_spares = f"{100 * out['accounts']['spares'] / out['wasted_gpu_hours']['mean']:.1f} %"
    said += r"\d\d\.\d h; [\d.]+ % of [\d.]+ million GPU-hours are wasted\. Of the waste, " + re.escape(of_spares)
    said += r" is \d+ nodes on top of those at work \(assumed\): they stand by, or are in repair\.$"
    assert re.match(said, found["answer"])
    assert sum(out["accounts"].values()) == pytest.approx(out["gpu_hours"]["mean"])
    assert out["wasted_gpu_hours"]["mean"] == pytest.approx(out["gpu_hours"]["mean"] - 2048 * 20 * 24)
    assert out["days"]["low"] <= out["days"]["mean"] <= out["days"]["high"]
    wasted = out["wasted_gpu_hours"]["mean"] / out["gpu_hours"]["mean"]
    assert out["goodput"]["mean"] + wasted == pytest.approx(1)
    assert 0 < out["goodput"]["mean"] < out["ettr"]["mean"] <= 1
    expected = 256 * 419 / 110_592 * out["days"]["mean"]
    assert out["failures"]["mean"] == pytest.approx(expected, rel=0.1)


def test_each_input_says_whether_it_was_measured_and_what_if_is_played_on_the_same_histories(
    reports: pathlib.Path,
) -> None:
    what_ifs = (f"--what-if={what}" for what in ("recovery=0.5x", "recovery=1x", "failure_rate=2x"))
    words = ("--gpus", 4096, "--days", 10, "--set", "repair=10h", "--reports", reports)
    found = answer("loss-1", *words, *what_ifs)
    origins = {(each["name"], each["origin"]) for each in found["inputs"]}
    assert {("restart", "measured"), ("restart", "assumed"), ("repair", "given"), ("spares", "assumed")} <= origins
    assert all(each["source"] for each in found["inputs"])
    assert found["assumptions"][0].startswith("4,096 GPUs are taken to recover as fast as 2 GPUs on local did: in ")
    half, same, twice = found["what_if"]
    assert half["saved_gpu_hours"]["mean"] > 0 == same["saved_gpu_hours"]["mean"] > twice["saved_gpu_hours"]["mean"]
    assert half["change"] == "recovery=0.5x"
    nothing = answer("--gpus", 64, "--days", 5)
    assert nothing["assumptions"][0].startswith("Nothing was measured")
    assert {each["origin"] for each in nothing["inputs"]} == {"assumed"}


def test_advice_holds_the_interval_against_young_and_daly(reports: pathlib.Path) -> None:
    words = ("loss-1", "--gpus", 16_384, "--days", 5, "--reports", reports)
    found = answer(*words, "--set", "checkpoint_every=4h", "--set", "spares=40")
    advice = found["advice"]
    assert advice["young_s"] == pytest.approx((2 * 20 * 86_400 / (2048 * 419 / 110_592)) ** 0.5)
    assert advice["daly_s"] / 2 <= advice["best_interval"]["value"] <= 2 * advice["daly_s"]
    tried = {each["value"]: each["days"] for each in advice["intervals"]}
    assert tried[14_400] > tried[advice["best_interval"]["value"]]
    for rows, now in (("intervals", 14_400), ("spares", 40)):
        (same,) = (each for each in advice[rows] if each["value"] == now)
        assert same["days"] == pytest.approx(found["outcome"]["days"]["mean"])
        assert same["gpu_hours"] == pytest.approx(found["outcome"]["gpu_hours"]["mean"])
    worth = [each["of_all"] for each in advice["worth"]]
    assert worth == sorted(worth, reverse=True)
    waiting = next(each for each in advice["worth"] if each["what"] == "Waiting for nodes")
    assert 0 < waiting["times"] == found["outcome"]["waits"] < found["outcome"]["failures"]["mean"] / 2
    startup = next(each for each in advice["worth"] if each["what"] == "Restart: start-up")
    assert startup["of_a_second"] == pytest.approx(startup["times"] * 16_384 / 3600)


def test_money(reports: pathlib.Path) -> None:
    words = ("loss-1", "--gpus", 64, "--days", 5, "--reports", reports, "--price", 32.77)
    plain = answer(*words)
    assert [each["name"] for each in plain["money"]["purchases"]] == ["On demand"]
    assert any("as many samples a second" in each for each in plain["assumptions"])
    paid = plain["outcome"]["gpu_hours"]["mean"] / 8 * 32.77
    assert plain["money"]["purchases"][0]["dollars"]["mean"] == pytest.approx(paid)
    spot = answer(*words, "--spot-price", 11, "--deadline", 9, "--tokens-per-second", 1000)["money"]
    costs = {each["name"]: each for each in spot["purchases"]}
    assert len(costs) == 5 and all(each["in_time"] == 1 for each in costs.values())
    demand, bound = costs["On demand"], costs["Spot and on demand, omniscient"]
    assert bound["dollars"]["mean"] < demand["dollars"]["mean"] and bound["is_bound"]
    assert demand["per_dollar"] == pytest.approx(1000 * 5 * 86_400 / demand["dollars"]["mean"])
    assert spot["breakeven_reclaims"] > 0
    slow = answer(*words, "--spot-price", 11, "--set", "restart=3h")["money"]
    assert slow["breakeven_reclaims"] < 0.5 * spot["breakeven_reclaims"], "what is given holds for spot nodes, too"
    dear = answer(*words, "--spot-price", 40)["money"]
    assert dear["breakeven_reclaims"] is None
    said = chaos(*words, "--samples", 40, "--spot-price", 40, "--deadline", 1).output
    assert "Nothing is done by the deadline of 1 day in 95 % of the histories." in said and "never pays" in said


def test_the_page_has_all_that_the_terminal_has(reports: pathlib.Path) -> None:
    page = reports / "page" / "forecast.html"
    words = ("--gpus", 512, "--days", 5, "--price", 10, "--spot-price", 3, "--what-if", "repair=0.5x", "--page", page)
    done = chaos("loss-1", *words, "--samples", 40, "--reports", reports)
    assert done.exit_code == 0 and done.output.rstrip().endswith(f"Page: {page}")
    shown = Page(page.read_text())
    for title in ("The answer", "Wasted by cause", "Spares", "Money", "What if", "What it rests on"):
        assert title in done.output and title in shown.text
    sentence, *rests_on = done.output.splitlines()[:3]
    assert shown.text.count(sentence) == 1, "the answer is the page's title"
    assert all(shown.text.index(sentence) < shown.text.index(each) < shown.text.index("Time to") for each in rests_on)
    assert rests_on[0].startswith("512 GPUs are taken to recover as fast as 2 GPUs") and "llama3" in rests_on[1]
    assert re.search(r"\$[\d,]+ of \$[\d,]+ on demand", sentence)
    assert "costs $10.00 on demand, $3.00 on spot" in shown.text
    spot = "This forecast takes 0.11 a day (0.0017 per node-day, assumed)"
    assert spot in shown.text, "what the choice of spot hangs on"
    assert not [each for name, each in shown.elements if name == "script" or "src" in each]
    labels = [attributes.get("aria-label") or "" for tag, attributes in shown.elements if tag == "svg"]
    for chart in ("Time to complete: ", "GPU-hours paid: ", "Wasted by cause", "GPU-hours of all", "GPU-hours saved"):
        assert sum(label.startswith(chart) for label in labels) == 2, "wide and narrow"
    tables = [tag for tag, _ in shown.elements if tag in ("table", "details")]
    assert tables.count("details") >= tables.count("table") - 1, "the answer alone stands open"
    store(reports, "evil", backend=EVIL, fault=EVIL, phases={EVIL: 5.0, "startup": 1.0})
    done = chaos("evil", "--gpus", 64, "--days", 5, "--samples", 10, "--page", page, "--reports", reports)
    assert done.exit_code == 0 and "<script" not in page.read_text(), done.output


def test_a_job_that_never_ends_is_said_to_and_a_mean_above_the_quantile_is_explained() -> None:
    found = answer("--gpus", 16_384, "--days", 1, "--set", "recovery=20h", "--set", "queue=0s")
    assert "1 day of work is not done in 10 days" in found["answer"]
    assert found["outcome"]["days"]["mean"] is None and found["outcome"]["finished"] < 0.5
    found = answer("--gpus", 512, "--days", 10, "--seed", 1)
    days = found["outcome"]["days"]
    assert ("on average, as a few wait long" in found["answer"]) == (days["high"] < days["mean"])


def test_a_job_without_failures_is_no_division_by_nothing() -> None:
    found = answer("--gpus", 8, "--days", 1, "--set", "failure_rate=0", "--price", 1, "--spot-price", 0.5)
    assert "without a failure" in found["answer"] and found["outcome"]["failures"]["mean"] == 0
    assert found["advice"]["best_interval"] is None and found["advice"]["best_spares"] is None
    assert found["outcome"]["days"]["mean"] == pytest.approx(1, abs=0.01)  # no checkpoint was needed
    assert "--set failure_rate=0 says" in found["failure_rates"]["source"]


def test_nodes_of_another_size_fail_as_often_per_gpu() -> None:
    usual, large = (answer("--gpus", 1440, "--days", 1, "--gpus-per-node", size) for size in (8, 72))
    rates = [each["failure_rates"]["per_1000_node_days"]["NIC"] for each in (usual, large)]
    assert rates[1] == pytest.approx(9 * rates[0]) and "there a node had 8" in large["failure_rates"]["source"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--days=nan", "--days: 'nan' is not allowed; write a number from 0.01 to 3,650"),
        ("--days=0", "--days"),
        ("--gpus=10000000", "can be simulated: take fewer GPUs"),
        ("--gpus=10000000 --gpus-per-node=1 --set=failure_rate=100000", "can be simulated"),
        ("--what-if=spot_reclaims=2x", "set it with --set"),
        ("--samples=1000000", "--samples"),
        ("--seed=-1", "--seed -1"),
        ("--gpus-per-node=0", "--gpus-per-node"),
        ("--price=-1", "--price"),
        ("--price=0", "--price"),
        ("--spot-price=1", "--spot-price needs --price"),
        ("--deadline=1", "--deadline needs --price"),
        ("--rates=metta", "neither a file nor a table"),
        ("--failures=often", "weibull:SHAPE"),
        ("--failures=weibull:0.6 --trace=t.csv", "write one of them"),
        ("--trace=no-such.csv", "no-such.csv: cannot be read"),
        ("--failures=weibull:0", "from 0.2 to 5"),
        ("--set=restrt=5m", "did you mean restart"),
        ("--set=restart", "NAME=VALUE"),
        ("--set=restart=5", "is not a duration"),
        ("--set=restart=-5s", "is not a duration"),
        ("--set=checkpoint_every=0s", "checkpoint_every"),
        ("--set=spares=1.5", "a whole number"),
        ("--set=smallest=0", "smallest"),
        ("--set=together=nan", "together"),
        ("--what-if=pace=3x", "pace: '3.0' is not allowed; write a number from 0.01 to 1"),
        ("--what-if=queue=2x", "queue: 'inf'"),
        ("--what-if=recovery=-1x", "recovery, its factor"),
        ("--what-if=recovery=infx", "recovery, its factor"),
        ("no-such-run", "unknown run"),
        *(
            (f"--gpus={value}", "write a whole number from 1 to 10,000,000")
            for value in ("", "0", "-8", "nan", "inf", "1e400", "10000000000000", "1.5", "x", "9" * 5000)
        ),
    ],
)
def test_what_cannot_be_forecast_is_refused_in_one_message(words: str, says: str, tmp_path: pathlib.Path) -> None:
    usual = ["--gpus=64", "--days=5", "--samples=10", f"--reports={tmp_path}"]
    done = chaos(*usual, *words.split())
    assert type(done.exception).__name__ == "UsageError", done.output
    assert says in str(done.exception)


def test_failures_come_as_in_a_trace() -> None:
    trace = pathlib.Path(__file__).resolve().parents[2] / "scenarios" / "traces" / "bamboo-g4dn.csv"
    words = ("--gpus", 16, "--days", 1, "--gpus-per-node", 1, "--set", "queue=5m", "--trace", trace)
    found = answer(*words)
    assert found["failure_rates"]["table"] == "bamboo-g4dn.csv"
    assert found["outcome"]["failures"]["mean"] == pytest.approx(
        16 * 48 / 5.65 * found["outcome"]["days"]["mean"], rel=0.3
    )
    assert any("They come as in bamboo-g4dn.csv." in each for each in found["assumptions"])
    given = {each["name"]: each["value"] for each in found["inputs"] if each["origin"] == "given"}
    assert given["together"] == "0.3542" and given["together_nodes"] == "3"
    ours = answer(*words, "--rates", "llama3")
    assert ours["failure_rates"]["table"] == "llama3" and "as in bamboo" in ours["failure_rates"]["gaps"]


def test_vectors_are_a_table() -> None:
    from harness.forecast.published_vectors import VECTORS

    done = chaos("--vectors")
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) == len(VECTORS) + 2


PHASES = {"detect": 30.0, "startup": 200.0}


def report(tmp_path: pathlib.Path, price: float | None = None, **changes: Any) -> Report:
    store(tmp_path, "run", fault="node_loss", **{"phases": PHASES, "stall": 5.0} | changes)
    values = json.loads((tmp_path / "run" / "report.json").read_text())
    waste = values["scores"]["wasted_gpu_hours"]
    waste["dollars_wasted"] = price and price * waste["gpu_seconds_wasted"] / 3600
    return run_report.Report.from_json(values)


def test_a_price_makes_a_sentence_in_dollars_a_week_and_a_slower_recovery_wastes_more(tmp_path: pathlib.Path) -> None:
    found = section_of(report(tmp_path, price=2.5))
    assert found is not None
    said = re.fullmatch(
        r"At 1,024 GPUs, a stack that recovers like this wastes \$([\d,]+) a week \(90 %: \$([\d,]+) to \$([\d,]+)\) at "
        r"\$2.50 a GPU-hour.",
        found.top,
    )
    assert said, found.top
    mean, low, high = (float(each.replace(",", "")) for each in said.groups())
    assert low < mean < high
    row = next(row for row in found.rows if row[0] == "1,024")
    assert float(row[3].replace(",", "")) * 2.5 == pytest.approx(mean, rel=1e-3)
    assert [row[0] for row in found.rows] == ["64", "1,024", "4,096"] and found.head[-1] == "dollars a week"
    slow = report(tmp_path / "slow", phases={"detect": 30.0, "startup": 3000.0})
    plain, slower = section_of(report(tmp_path / "plain")), section_of(slow)
    assert plain is not None and plain.top == "" and "dollars a week" not in plain.head, "without a price: GPU-hours"
    assert slower is not None
    assert float(plain.rows[1][3].replace(",", "")) < float(slower.rows[1][3].replace(",", ""))
    nothing: list[dict[str, Any]] = [{"verdict": "fail"}, {"verdict": "inconclusive"}, {"stall": -1.0}]
    for number, changes in enumerate([*nothing, {"phases": {"startup": 1e308}}]):
        assert section_of(report(tmp_path / str(number), price=2.5, **changes)) is None, "nothing that counts"
    episode = {"seconds": 1.0, "faults": ["evict"], "phases": {"startup": 1.0}}
    scores = {"recovery_time": {"episodes": [episode] * 20_000}, "wasted_gpu_hours": {"gpu_seconds_wasted": 1.0}}
    many = report(tmp_path / "many", scores=scores)
    tracemalloc.start()
    try:
        assert section_of(many) is not None
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()


def test_the_reports_of_a_run_have_the_sections_of_the_wings(tmp_path: pathlib.Path) -> None:
    made = report(tmp_path, price=2.5)
    sections = sections_of(made)
    (only,) = sections
    page = Page(html_page.render(made, None, sections))
    assert page.text.index(only.top[:40]) < page.text.index("What happened") < page.text.index("a failure every")
    text = markdown.render(made, sections)
    assert "## A week at scale" in text and text.index(only.top[:20]) < text.index("## Expectations")
    assert "A week at scale" not in html_page.render(made) + markdown.render(made)
    card = verdict(simulate(Job(), [Outage(after=12, kind="rank")], seed=1), expect={})
    written = write_reports(replace(card, verdict=Verdict.PASS), tmp_path, sections_of)
    for name, has_it in (("report.html", True), ("report.md", True), ("report.json", False)):
        assert ("A week at scale" in written[name].read_text()) is has_it, name

"""Defines all numbers with which the judge compares measurements, each with a unit, a source and an explanation.

`healthy("<=", …)` defines a number that no measurement of a healthy run exceeds. The explanation in `healthy(…)`
describes a healthy run and then, after a `|`, a broken run. `judged(">=", …)` defines the least amount of evidence with
which a rule applies. The explanation in `judged(…)` describes too little evidence and then, after a `|`, enough
evidence. `method(…)` defines a constant of a computation, such as the length of a time window. No measurement is
compared with such a constant alone.

The text on a number's source begins with `runs:` (the runs that show the number), `formula:`, `published:`, `meaning:`
(the number follows from the definition) or `guess:` (no stored run comes near the number). `make margins` shows how
close measurements of healthy and of broken runs come to each number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

Sign = Literal["<", "<=", ">", ">="]
Number = TypeVar("Number", int, float)
SOURCES = ("runs: ", "formula: ", "published: ", "meaning: ", "guess: ")


@dataclass(frozen=True)
class Threshold:
    kind: Literal["healthy", "judged", "method"]
    sign: Sign | None  # comparison that a healthy run meets, or sufficient evidence
    value: float
    unit: str
    parts: str
    source: str


_ROWS: list[Threshold] = []


def healthy(sign: Sign, value: Number, unit: str, parts: str, source: str) -> Number:
    _ROWS.append(Threshold("healthy", sign, value, unit, parts, source))
    return value


def judged(sign: Sign, value: Number, unit: str, parts: str, source: str) -> Number:
    _ROWS.append(Threshold("judged", sign, value, unit, parts, source))
    return value


def method(value: Number, unit: str, parts: str, source: str) -> Number:
    _ROWS.append(Threshold("method", None, value, unit, parts, source))
    return value


def table() -> Mapping[str, Threshold]:
    """Returns all thresholds by name, in the order in which this file defines them."""
    names = [name for name, value in globals().items() if name[0] != "_" and isinstance(value, int | float)]
    return dict(zip(names, _ROWS, strict=True))


# fmt: off

# Clocks, and events that are reported late

BEFORE_NS = healthy("<=", 10**8, "ns", "a fault acts so long before it is told | earlier", "guess: the harness tells its own deeds within 100 ms")
COARSE_NS = healthy("<=", 5 * 10**7, "ns", "times of two tellers are rounded | apart", "runs: docs/margins.json")
ROUNDED_NS = healthy("<=", 10**7, "ns", "times of one process are rounded | apart", "runs: docs/margins.json")
APART_NS = healthy("<=", 125 * 10**6, "ns", "two clocks of one host, set at two moments | apart", "runs: docs/margins.json")
ALLOCATED_NS = healthy("<=", 3 * 10**9, "ns", "a node is seen late | it did steps before it was given", "runs: docs/margins.json")
SEEN_NS = healthy("<=", 5 * 10**9, "ns", "a recovery is seen late on a busy host | told too early", "runs: docs/margins.json")
LAST_WORDS_NS = healthy("<=", 10**9, "ns", "a save's end is told after the process left | it goes on", "runs: docs/margins.json")
NOTICED_NS = healthy("<=", 10**9, "ns", "a notice beside the strike that it announces | told before it was given", "runs: 0.22 s in golden/B-notice-cancelled")
USUAL_FACTOR = healthy("<=", 2, "× usual", "as late as without a fault | later", "runs: docs/margins.json")
USUAL_LEAST_NS = healthy("<=", 2 * 10**9, "ns", "a save is seen late on a busy host | told before it was", "runs: 2.5 s in forged2/S-steps_told_faster")
LATE_SAVES = healthy("<", 3, "saves in a row", "seen late by chance | told before they were", "runs: docs/margins.json")
FINE_NS = judged("<", 10**5, "ns", "clocks too coarse to tell copies | fine enough", "formula: with COPIED_STEPS")
COPIED_STEPS = method(5, "steps", "in a row that a copy shares", "formula: 5 steps that scatter by 10 ms are alike at 0.1 ms in 100^-5 of cases")
STEPS_LOOKED_AT = method(4096, "steps", "that show how coarse clocks are", "meaning: more change no divisor")

# Computed values

DIFFERS_FOR_GOOD = judged(">=", 0.9, "of later steps", "differs for a while | never the same again", "runs: torch 2.4.1, from its second step on")
TERMS_LEAST = method(2**20, "terms", "of the longest sum, where no save tells more", "meaning: a model of a million parameters")
PARAMETER_BYTES = method(12, "bytes", "of a save for each parameter", "published: Kingma and Ba 2015: Adam keeps two moments of each, here as 32-bit floats")

# The host, and the pace

TOO_FAST = healthy(">=", 0.25, "× usual", "so fast | its steps were not done then", "runs: docs/margins.json")
HIDDEN_SHARE = healthy("<=", 0.5, "of what was saved", "a slower end | the time is hidden in it", "meaning: more than half of it")
SPENT_SHARE = healthy("<", 0.5, "of a step", "a line is lost whose step was skipped | done", "meaning: half of it")

# All other thresholds

SLOWDOWN_MAX = healthy("<=", 1.5, "× usual", "as fast as before | slower for good", "runs: docs/margins.json")
HOST_FACTOR = healthy("<=", 1.4, "× bound", "a shared host does that | slower", "runs: docs/margins.json")
OTHERS_MAX = healthy(">", 0.15, "of the CPUs", "other programs explain it | they do not", "runs: a build that began after the recovery")
REPORTED_SOON_NS = healthy("<", 2 * 10**8, "ns", "a fault is told a moment after its victim ended | its victim had ended before", "guess: no stored run comes near it")
UNDONE_LATE_NS = healthy("<=", 10 * 10**9, "ns", "a fault is undone late on a busy host | too late", "runs: docs/margins.json")
LISTED_NS = healthy("<", 2 * 10**9, "ns", "a controller asks for saves once a second | it must know the save", "published: Ray Train asks its workers each second")
EXIT_TOLD_NS = healthy("<=", 10**9, "ns", "a fault sees its victim's end before the launcher tells it | another end", "guess: no stored run comes near it")
EARLY_STEPS = healthy("<=", 2, "steps", "told steps lag behind the strike | it struck before its step", "meaning: one step is at work, and one is not told yet")
NOTICE_SHARE = healthy(">=", 0.9, "of the promised time", "a node had its notice | it was taken sooner", "runs: docs/margins.json")
NOTICE_LATE_NS = healthy("<=", 10 * 10**9, "ns", "an engine takes a node late | it took it for another reason", "guess: no stored run comes near it")
SURVIVED_NS = healthy("<", 60 * 10**9, "ns", "dies soon after a fault was healed | of something else", "meaning: a minute of steps, and a save")
CLOCKS_KNOWN_NS = judged("<=", 10**9, "ns", "clocks known less explain no death | known well enough", "meaning: deaths follow each other within seconds")
SIZES_MIN = judged(">=", 3, "saves", "too few sizes | enough to show that they stay", "runs: docs/margins.json")
SIZES_SPREAD = healthy("<=", 8, "× the spread now", "sizes spread without a fault, too | all are of one state", "runs: docs/margins.json")
PILED_UP = healthy("<=", 2, "checkpoints for each fault", "left over by faults | no longer removed", "meaning: a half one, and one that was saved over")
SEEN_AGAIN = judged(">", 0.5, "of a step's samples", "padding | the next pass", "meaning: padding is less than half of a step")
RESTARTS_IN_VAIN = healthy("<=", 6, "restarts in a row", "a start fails by chance | a crash loop", "published: Kubernetes gives a Job up after 6 retries (backoffLimit)")
IN_FLIGHT = healthy("<=", 2, "× the interval", "a save in flight is lost, too | the job went further back", "meaning: one interval, and the save that was being written")
QUANTILE = method(0.99, "of steps", "took no longer without a fault: the band", "meaning: one step in a hundred is an outlier")
SYNC_QUANTILE = method(0.95, "of gradient syncs", "took no longer without a fault", "guess: no stored run comes near it")
SMOOTHED_STEPS = judged(">=", 5, "steps", "a lone slow step | a slow stretch", "runs: docs/margins.json")
STEPS_BEFORE = method(20, "steps", "before a fault show how fast the job was", "guess: no stored run comes near it")
OTHERS_MOST = judged("<=", 0.5, "of the CPUs", "others take so much that times say little | the host is the job's", "meaning: half of them")
TIMEOUT_MIN_NS = judged(">=", 20 * 10**9, "ns", "an error ended it at once | a timeout may have", "meaning: those of torch's store, rendezvous and collectives are 30 s or longer")
FAST_BEFORE = judged(">=", 2 / 3, "× usual", "the job was much faster than usual before | comparable", "runs: docs/margins.json")
OWN_STEPS_MIN = judged(">=", 5, "steps", "too few to show how long a step takes | enough", "meaning: a median of five outlives two outliers")
LONE_FACTOR = healthy("<=", 3, "× the band", "a step is slow by chance | slow by itself", "runs: docs/margins.json")
SAVES_MIN = judged(">=", 3, "steps of each kind", "too few with a save | enough to show their scatter", "meaning: a median of three outlives an outlier")
STEPS_MIN = judged(">=", 10, "steps", "too few undisturbed ones | enough for a pace", "runs: docs/margins.json")
PAUSES_STEPS_MIN = judged(">=", 15, "steps", "too few to show the host's pauses | enough", "runs: docs/margins.json")
WORST_FACTOR = healthy("<=", 2, "× the bound", "a slow quarter | the job lost its pace for a while", "runs: docs/margins.json")
NORMAL_95 = method(1.645, "standard deviations", "one-sided 95 %", "formula: the normal distribution")
NORMAL_97 = method(1.96, "standard deviations", "one-sided 97.5 %", "formula: the normal distribution")
SETTLING_STEPS = method(3, "steps", "after an outage are not counted: caches are cold", "guess: no stored run comes near it")
STILL_LEAST_NS = healthy("<=", 4 * 10**9, "ns", "a busy host | the job stands still", "runs: docs/margins.json")
STILL_FACTOR = healthy("<=", 5, "× usual", "a save or an evaluation | the job stands still", "runs: docs/margins.json")
EARLY_MIN = healthy("<", 2, "saves", "a line was lost | told before it was written", "meaning: once may be chance")
BARE_MIN = healthy("<", 2, "moments", "between two looks of the harness | no checkpoint there", "meaning: once may be chance")
LEAK_RATE_FACTOR = healthy("<=", 4, "× the measured growth", "a rate told roughly | another rate", "runs: 1.2 in memory-leak")
RANK_GAP_FACTOR = healthy("<=", 2, "× max_final_gap", "chance | one rank is off", "runs: 0.5 in torchft rank-kill")
LEAK_MEAN_FACTOR = healthy("<=", 1000, "× a part of it", "a mean with time before the leak | no rate", "guess: no stored run comes near it")
SPIKE_MEMORY = method(128, "steps", "from which the usual norm is known again", "meaning: 4 × NORMS_KEPT of the alarm")
ALARM_STEPS = method(20, "steps", "that an alarm about a slow rank is held against", "guess: no stored run comes near it")
SHARE_BORNE_OUT = healthy(">=", 0.5, "of the excess told", "borne out by the log | a false alarm", "meaning: half of it")
EXCESS_MIN = healthy(">=", 0.1, "over its peers", "a slow rank | not slow, whatever was told", "guess: no stored run comes near it")
REGULAR = judged(">=", 0.9, "of the steps that tell it", "told now and then | told by a rule", "runs: docs/margins.json")
IRREGULAR = judged("<=", 0.1, "of its steps are left out", "told by no rule | by one", "guess: no stored run comes near it")
BAND_SINGLE = healthy("<=", 3.0, "× the largest difference so far", "rounding grows | another loss", "formula: 1 in 10 of one run, so `ENOUGH` are asked")
BAND_NEAR_BY = healthy("<=", 5.0, "× the largest difference near by", "drifts sooner | another loss", "runs: docs/margins.json")
BAND_LASTING = healthy("<=", 5.0, "× the largest mean of a stretch", "drifts | lasts", "runs: docs/margins.json")
BAND_SOONER = judged("<=", 10.0, "× the largest difference so soon", "rounding grows faster there | as elsewhere", "runs: docs/margins.json")
ENOUGH = judged(">=", 3, "fault-free runs", "too few to show the scatter | enough", "formula: 3 × the mean of one run accuses up to 1 in 10")
STRETCHES = method(12, "stretches", "of a run, each with a band of its own", "meaning: neighbours overlap")
STRETCH_STEPS = method(10, "steps", "of a stretch at the least", "meaning: a mean of ten")
SOON = method(10, "steps", "by which two runs may part sooner or later", "meaning: a stretch")
REPEAT_FACTOR = healthy("<=", 10, "× earlier repetitions", "rounding | another step", "guess: no stored run comes near it")
CALIBRATING_STEPS = judged(">=", 5, "steps", "too few the same bit for bit | enough", "guess: no stored run comes near it")
NOISE_STEPS = judged(">=", 20, "steps", "too few off by a little | enough", "guess: no stored run comes near it")
REPEATED_SHARE = judged(">=", 0.5, "of repeated steps", "tell no figure both times | do", "meaning: half of them")
CHANGED_SHARE = healthy(">=", 0.9, "of the steps since a change", "the figure that shows it differs | the old configuration's", "runs: 1.0 in hot-update, 0 in hot-update without its words")
NORM_OFF = healthy("<=", 2, "× the fault-free median of ten steps", "a gradient norm of noisy batches | of another training", "meaning: half the samples of a batch give 1.4 ×")
LAG_STRETCHES = method(2, "stretches", "by which a loss may lag behind the fault-free run's, or be ahead", "guess: no stored run comes near it")
LASTS = healthy("<", 10, "stretches in a row", "far off by scatter alone | far off", "guess: no stored run comes near it")
RECOVERS_STEPS = healthy("<=", 30, "steps", "a loss recovers from a fault that moved it | it stays off", "guess: no stored run comes near it")
SPREAD = method(1.4826, "standard deviations", "in the median distance from the median", "formula: the normal distribution")
LOCAL_SHARE = judged("<=", 0.5, "of the steps", "a rank tells values of its own | it tells the job's", "meaning: half of them")
SMALLER = healthy(">=", 0.5, "of the smallest save", "a save is smaller | it holds no model", "runs: docs/margins.json")
SMALLER_STEADY = healthy(">=", 0.9, "of the smallest save", "a save is smaller, where sizes are alike | part is missing", "runs: docs/margins.json")
STEADY = judged(">=", 0.97, "of the largest save", "sizes scatter | are alike", "runs: docs/margins.json")
STEADY_SAVES = judged(">=", 3, "saves", "too few sizes | enough to be alike", "meaning: three are no chance")
ZEROS_MORE = healthy("<=", 0.05, "of all bytes", "zeros | tensors were not written", "guess: no stored run comes near it")
KEPT_MORE = healthy("<=", 0.1, "of all bytes", "tensors stay as they were | an older state", "guess: no stored run comes near it")
BEGUN_LATE_STEPS = healthy("<=", 5, "steps", "a save is begun beside the steps | it is of another step", "runs: docs/margins.json")
REMOVAL_NS = healthy("<", 10**9, "ns", "what is left is being removed | it was saved so", "runs: docs/margins.json")
SAVED_EARLY_NS = healthy("<=", 5 * 10**8, "ns", "told a moment before its step | before its step", "guess: no stored run comes near it")
UNSEEN_FACTOR = healthy("<", 5, "× the longest time until one was seen", "not seen yet | never there", "runs: docs/margins.json")
UNSEEN_LEAST_NS = healthy("<", 5 * 10**9, "ns", "not seen yet | never there", "runs: docs/margins.json")
HOLLOW_BYTES = healthy(">=", 2**16, "bytes", "may hold a model that is read otherwise | holds none", "meaning: no model is smaller")
HOLES_MAX = healthy("<=", 1, "steps", "a figure is left out by chance | not told", "meaning: once may be chance")
NEAR_ZERO = judged(">=", 0.01, "of how far the loss moves", "too near zero for percent | far enough", "meaning: 1 % of it is nothing")
BLOCKS = method(10, "stretches", "whose means show the scatter", "published: Schmeiser 1982, 10 to 30 batches")
T_99 = method(3.25, "standard errors", "two-sided 99 %, 9 degrees of freedom", "formula: Student's t")
FINAL_SHARE = method(0.2, "of the steps", "are the last ones", "meaning: docs/metrics.md defines it")
HALVINGS = healthy("<=", 16, "skipped updates", "from the first loss scale down to 1 | not a scale's", "published: torch.amp.GradScaler, 2^16")
HALVINGS_MAX = healthy("<=", 40, "skipped updates", "from the largest scale down to 1 | not a scale's", "formula: above 2^40 the smallest fp16 number, 2^-24, is infinite")
GROWTH_INTERVAL = method(2000, "updates", "after which a loss scale doubles", "published: torch.amp.GradScaler")
UPDATES_LEFT_OUT = healthy("<=", 10, "updates", "left out over a loss scale | too many", "guess: no stored run comes near it")
UPDATES_LEFT_OUT_SHARE = healthy("<=", 0.05, "of the steps", "left out over a loss scale | too many", "guess: no stored run comes near it")
DRILL_FACTOR = healthy("<=", 3.0, "× the run's own distance", "rounding | another loss", "guess: no stored run comes near it")
DRILL_HELD_UP_NS = healthy("<=", 10**9, "ns", "the harness is held up | another drill", "runs: docs/margins.json")
SAME_STEPS = healthy("<", 10, "steps in a row", "losses alike by chance | the loss stands still", "guess: no stored run comes near it")
DRAWN_TWICE = healthy("<", 10, "samples", "drawn twice by chance | consumed again", "formula: Poisson: chance gives more in under 1 of 1,000 runs")
UNATTRIBUTED_PERCENT_MAX = judged("<=", 1.0, "% of GPU time", "too much is in no account | all is accounted for", "meaning: docs/metrics.md promises it")
GPU_PATIENCE = healthy("<=", 3, "× the usual time", "a new GPU does not step yet | idle", "guess: no stored run comes near it")
EXIT_FACTOR = healthy("<=", 3, "× usual", "the job ends slowly | hangs in its exit", "guess: no stored run comes near it")
EXIT_LEAST_NS = healthy("<=", 30 * 10**9, "ns", "the job ends slowly | hangs in its exit", "runs: docs/margins.json")
SHARE_SAVES_MIN = judged(">=", 4, "saves due", "too few for a share | enough", "meaning: one of three is a third")
SEEN_MIN = judged(">=", 3, "saves seen", "too few to expect any | enough", "meaning: three are no chance")
WRITTEN_NS = method(10**8, "ns", "after a save was told its writer may not be free yet", "guess: no stored run comes near it")

"""The vocabulary of the event log: one declaration for each event. Standard library only.

All else comes from here: the checks and the columns of the readers (`harness.log`), docs/events.md, and the JSON
Schema that `chaos schema --events` prints.

A reader ignores an event whose name it does not know, and a field that is not declared: newer trainers may tell more.
A declared field with another type, or beyond its limits, is damaged evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

SCHEMA_VERSION = 1

# Kinds of values.
INTEGER = "integer"
NUMBER = "number"  # or one of NOT_FINITE, which JSON has no number for
TEXT = "text"
FLAG = "flag"
LABEL = "label"  # a text or an integer that is only compared
TEXTS = "list of texts"
OBJECT = "object"
OBJECTS = "list of objects"
RUNS = "list of runs"  # of integers: [first, count] or [first, count, stride]

NOT_FINITE = ("nan", "inf", "-inf")

# Limits. What is larger is no measurement, and would cost the reader hours or all of its memory.
MONO_NS_MAX = 2**58  # nine years
WALL_NS_MAX = 2**62  # the year 2116
OFFSET_NS_MAX = 2**61
STEP_MAX = 10**9
SAMPLE_MAX = 2**60
RUNS_MAX = 2**16  # in one step
SAMPLES_MAX = 2**24  # of one rank in one step
RANKS_MAX = 2**17
GPUS_PER_NODE_MAX = 1024
BYTES_MAX = 2**60
CODE_MAX = 2**32
PID_MAX = 2**31
INCARNATION_MAX = 10**6
SEED_MAX = 2**63 - 1
NAME_CHARS_MAX = 1000


@dataclass(frozen=True)
class Field:
    """One field of an event. `least` and `most` limit a number, or with TEXT, LABEL and OBJECTS the length.

    `values` are the known ones; with `closed` there are no others. `fields` are those of an OBJECT or of each of
    OBJECTS; without them any object will do. `column` is the field's place in the table of steps.
    """

    name: str
    kind: str
    meaning: str
    unit: str = ""
    optional: bool = False
    least: int | None = None
    most: int | None = None
    values: tuple[str, ...] = ()
    closed: bool = False
    fields: tuple[Field, ...] = ()
    column: str = ""
    otherwise: int | None = None  # what the column holds where the field is not told


@dataclass(frozen=True)
class Event:
    name: str
    roles: tuple[str, ...]
    meaning: str
    fields: tuple[Field, ...] = ()

    @property
    def role(self) -> str:
        """The role that usually writes it."""
        return self.roles[0]


def _name(name: str, meaning: str, optional: bool = False, values: tuple[str, ...] = ()) -> Field:
    return Field(name, TEXT, meaning, optional=optional, most=NAME_CHARS_MAX, values=values)


def _text(name: str, meaning: str, optional: bool = True) -> Field:
    return Field(name, TEXT, meaning, optional=optional)


def _edge() -> Field:
    return Field("edge", TEXT, "which end of it", optional=True, values=("begin", "end"), closed=True)


def _step(meaning: str, optional: bool = False) -> Field:
    return Field("step", INTEGER, meaning, unit="steps", optional=optional, least=0, most=STEP_MAX)


def _spent(name: str, meaning: str) -> Field:
    return Field(name, INTEGER, meaning, unit="ns", optional=True, least=0, most=MONO_NS_MAX, column=name, otherwise=0)


def _code(meaning: str) -> Field:
    return Field("code", INTEGER, meaning, optional=True, least=-CODE_MAX, most=CODE_MAX)


def _rank(name: str, meaning: str, least: int = 0) -> Field:
    return Field(name, INTEGER, meaning, optional=True, least=least, most=RANKS_MAX - 1)


def _size(name: str, meaning: str, unit: str = "", most: int = RANKS_MAX, optional: bool = True) -> Field:
    return Field(name, INTEGER, meaning, unit=unit, optional=optional, least=0, most=most)


def _incarnation() -> Field:
    meaning = "which node of that name: 1, and one more for each replacement"
    return Field("incarnation", INTEGER, meaning, optional=True, least=0, most=INCARNATION_MAX)


def _place(optional: bool = False) -> tuple[Field, ...]:
    return (_name("node", "the node's name", optional=optional), _incarnation())


_FAULT = _name("fault", "the fault's id in the plan")
_TENSORS = (
    "in whatever files and order, without counters (up to 16 bytes) and states of random generators (multiples of "
    "5,056 or 5,072 bytes); none: none of its files has a known format of tensors"
)
_KIND_OF_SAVE = _name("kind", "why it is saved", optional=True, values=("periodic", "emergency", "final"))
_CONTENT = Field(
    "content", LABEL, "names what the checkpoint holds: the same when it is saved and loaded", optional=True, most=1000
)
_PID = Field("pid", INTEGER, "process id, as its node sees it", optional=True, least=0, most=PID_MAX)

ANOMALIES = (
    *("hang", "nonfinite", "gradient", "straggler", "topology", "replica", "data", "data_skew", "out_of_memory"),
    *("stagnation", "slow", "data_wait", "checkpoint_late", "divergence", "memory"),  # see `abnormal.py`
)

MAY = ("kill", "stop", "spoil", "drift", "diverge", "leak")  # what may come of a fault: see `harness.log.consequences`

Tell = Literal[
    "steps",
    "loss",
    "positions",
    "samples",
    "digests",
    "weights",
    "checkpoints",
    "restores",
    "phases",
    "exits",
    "clocks",
]
TELLS: tuple[Tell, ...] = get_args(Tell)

MONO_NS = Field(
    "mono_ns",
    INTEGER,
    "the writer's monotonic clock; the event's time",
    unit="ns",
    least=0,
    most=MONO_NS_MAX,
    column="end",
)
WALL_NS = Field(
    "wall_ns",
    INTEGER,
    "the writer's wall clock, since 1970",
    unit="ns",
    optional=True,
    least=-WALL_NS_MAX,
    most=WALL_NS_MAX,
)
COMMON = (
    _name("event", "the event's name"),
    WALL_NS,
    MONO_NS,
    _size("dropped", "events lost just before this one, because the disk took no more", "events", BYTES_MAX),
)

HEADER = (
    Field("schema", INTEGER, "version of this vocabulary", least=SCHEMA_VERSION, most=SCHEMA_VERSION),
    _name(
        "role",
        "who writes; without it nothing of the file is judged",
        optional=True,
        values=("trainer", "agent", "harness"),
    ),
    _name("writer", "the file's name without `.jsonl`", optional=True),
    _name("host", "the host's name; `clock` events use the same", optional=True),
    _name("clock", "the kernel's boot id: writers with the same one share the monotonic clock", optional=True),
    _PID,
    *_place(optional=True),
    _rank("rank", "the worker's rank in the job"),
    _rank("local_rank", "the worker's rank on its node"),
    _size("world_size", "how many ranks the job has", "ranks"),
    Field("tells", TEXTS, "what kinds of evidence this writer tells", optional=True, values=TELLS),
    Field(
        "uncertainty_ns",
        INTEGER,
        "the times of this file are no more exact than this; only in files that the harness writes",
        unit="ns",
        optional=True,
        least=0,
        most=OFFSET_NS_MAX,
    ),
    Field("wall_ns", INTEGER, WALL_NS.meaning, unit="ns", least=-WALL_NS_MAX, most=WALL_NS_MAX),
    Field("mono_ns", INTEGER, "the writer's monotonic clock", unit="ns", least=0, most=MONO_NS_MAX),
)

_COST = (
    Field("seconds", NUMBER, "how long it took", unit="s", optional=True, least=0),
    Field("gpu_seconds", NUMBER, "the same, for all its GPUs together", unit="GPU-s", optional=True, least=0),
)
TARGET = (*_place(optional=True), _rank("rank", "the rank; none: the whole node"))
LEFT = (
    _text("path", "as it would be published", optional=False),
    _step("whose state it holds; none: it is not known", optional=True),
    Field("whole", FLAG, "whether it is finished"),
    _size("bytes", "its size", "bytes", BYTES_MAX),
)
_EFFECT = (
    _FAULT,
    Field("measured", NUMBER, "what was measured", optional=True),
    Field("expected", NUMBER, "what the plan asks for", optional=True),
    _name("unit", "of both", optional=True),
    Field("ok", FLAG, "whether that is near enough; the fault's own rule decides"),
    _text("detail", "how it was measured"),
)

WORKLOAD = (
    _size("nodes", "nodes of the job", "nodes"),
    _size("min_nodes", "the job may go on with so many", "nodes"),
    _size("ranks_per_node", "workers, each with one GPU", "ranks", GPUS_PER_NODE_MAX),
    _size("steps", "so many steps are to be done", "steps", STEP_MAX),
    Field(
        "checkpoint",
        OBJECT,
        "how the trainer saves",
        optional=True,
        fields=(
            _size("every_steps", "one periodic checkpoint in so many steps", "steps", STEP_MAX),
            _name("every", "or one after so much time, such as `10m`", optional=True),
        ),
    ),
)
PLANNED_TARGET = (_size("node_index", "place of the node, from 0"), _rank("rank", "the rank; none: the whole node"))
PLANNED_FAULT = (
    _name("id", "the fault's id"),
    _name("fault", "the kind of fault", optional=True),
    Field("parameters", OBJECT, "the fault's parameters", optional=True),
    Field("when", OBJECT, "its trigger", optional=True),
    Field("targets", OBJECTS, "what it is to act on", optional=True, most=RANKS_MAX, fields=PLANNED_TARGET),
    Field("kills", FLAG, "whether processes of the target are meant to die", optional=True),
)
SCENARIO = (
    _text("name", "the scenario's name"),
    _text("title", "its title"),
    Field("tags", TEXTS, "its tags", optional=True),
    Field("price_per_gpu_hour", NUMBER, "what a GPU costs", unit="dollars/h", optional=True),
    Field("labels", OBJECT, "texts for reports, like project and team", optional=True),
    Field("file_digest", TEXT, "SHA-256 of the scenario's file", optional=True),
)
ABORT = (
    Field(
        "if_no_step_for_ns",
        INTEGER,
        "so long nobody does a step",
        unit="ns",
        optional=True,
        least=0,
        most=MONO_NS_MAX,
    ),
)
PLAN = (
    Field("seed", INTEGER, "decides all that is random", optional=True, least=-SEED_MAX, most=SEED_MAX),
    _name("run_id", "the run's id", optional=True),
    _name("backend", "where the nodes are", optional=True),
    Field("scenario", OBJECT, "what the plan was made from", optional=True, fields=SCENARIO),
    Field("workload", OBJECT, "the job", optional=True, fields=WORKLOAD),
    Field("faults", OBJECTS, "what is to be done to it", optional=True, fields=PLANNED_FAULT),
    Field("expect", OBJECT, "what must hold, by score", optional=True),
    Field("abort", OBJECT, "when the run is given up", optional=True, fields=ABORT),
)

LAYER = (
    _name("name", "the layer"),
    Field("gradient", NUMBER, "norm of its gradient, before it was clipped", optional=True),
    Field("weights", NUMBER, "norm of its weights", optional=True),
)

_TRAINER = (
    Event("started", ("trainer",), "The worker's code runs."),
    Event(
        "rendezvous",
        ("trainer",),
        "The process group is ready.",
        (
            _size("world_size", "ranks in the group; as in the header where it is not told", "ranks"),
            Field("world", LABEL, "names this group; each new group has another name", optional=True, most=1000),
            _size("data_samples", "samples in one pass over the data", "samples", SAMPLE_MAX),
        ),
    ),
    Event(
        "restored",
        ("trainer",),
        "The state was put back; the next step is the one after `step`.",
        (
            _step(
                "the step whose state it is; 0: from scratch; not told: unknown, and steps are counted from 1 again",
                optional=True,
            ),
            _text("source", "path of the checkpoint, `peer`, or `scratch`"),
            _CONTENT,
            Field(
                "saved",
                LABEL,
                "what it held when it was committed; another `content` is damage, or a save that was not seen",
                optional=True,
                most=1000,
            ),
            _name(
                "step_by",
                "what tells the step, the most trusted that knows it",
                optional=True,
                values=("ledger", "framework", "optimizer", "checkpoint"),
            ),
            Field("entered", TEXTS, "what the state was put into", optional=True, values=("model", "optimizer")),
            Field(
                "fallback",
                OBJECTS,
                "checkpoints that were passed over",
                optional=True,
                fields=(_text("source", "its path"), _text("reason", "what is wrong with it")),
            ),
        ),
    ),
    Event(
        "step",
        ("trainer",),
        "An optimizer step was completed. `mono_ns` is its end.",
        (
            Field(
                "step",
                INTEGER,
                "number of completed steps; the first one is 1",
                unit="steps",
                least=0,
                most=STEP_MAX,
                column="step",
            ),
            Field(
                "begin_ns",
                INTEGER,
                "when it began, on the monotonic clock; else when the step before ended",
                unit="ns",
                optional=True,
                least=0,
                most=MONO_NS_MAX,
                column="begin",
            ),
            Field("loss", NUMBER, "the loss", optional=True, column="loss"),
            Field("grad_norm", NUMBER, "norm of the gradient", optional=True, column="grad_norm"),
            Field("lr", NUMBER, "learning rate", optional=True, column="lr"),
            Field(
                "digest",
                LABEL,
                "digest of the global batch's sample indices, or of this rank's inputs",
                optional=True,
                most=NAME_CHARS_MAX,
                column="digest",
            ),
            Field(
                "first",
                INTEGER,
                "the global batch's first place in the shuffled order",
                unit="samples",
                optional=True,
                least=-1,
                most=SAMPLE_MAX,
                column="first",
                otherwise=-1,
            ),
            Field(
                "count",
                INTEGER,
                "how many places it has there",
                unit="samples",
                optional=True,
                least=-1,
                most=SAMPLE_MAX,
                column="count",
                otherwise=-1,
            ),
            Field(
                "rank_samples",
                INTEGER,
                "how many different samples this rank computed with in this step",
                unit="samples",
                optional=True,
                least=-1,
                most=SAMPLE_MAX,
                column="rank_samples",
                otherwise=-1,
            ),
            Field(
                "samples",
                RUNS,
                "indices in the data set that this rank consumed in this step, in order",
                unit="samples",
                optional=True,
                least=0,
                most=SAMPLE_MAX,
            ),
            Field(
                "epoch",
                INTEGER,
                "which pass over the data set `samples` belong to",
                optional=True,
                least=-1,
                most=STEP_MAX,
                column="data_pass",
                otherwise=-1,
            ),
            Field(
                "applied",
                FLAG,
                "false: the update was skipped, as gradient scaling does over an overflow",
                optional=True,
                column="applied",
                otherwise=1,
            ),
            _spent("data_ns", "time in this step blocked on data"),
            _spent("checkpoint_ns", "time in this step blocked on checkpointing"),
            _spent("sync_ns", "time of the gradient all-reduce, if measured"),
            Field(
                "weights",
                LABEL,
                "digest of the weights that this step computed with; replicas have the same",
                optional=True,
                most=NAME_CHARS_MAX,
                column="weights",
            ),
            _spent("weights_ns", "time in this step spent on that digest"),
        ),
    ),
    Event(
        "phase",
        ("trainer",),
        "A phase begins or ends.",
        (
            _name(
                "name",
                "the phase",
                values=(
                    "startup",
                    "rendezvous",
                    "restore",
                    "drain",
                    "checkpoint.snapshot",
                    "checkpoint.write",
                    "checkpoint.publish",
                ),
            ),
            _edge(),
        ),
    ),
    Event(
        "checkpoint.started",
        ("trainer",),
        "A checkpoint was begun.",
        (
            _step("the step whose state it holds"),
            _KIND_OF_SAVE,
            _text("path", "the first file or folder that is written"),
        ),
    ),
    Event(
        "checkpoint.committed",
        ("trainer",),
        "A checkpoint is whole and can be restored. Where several ranks tell it of one step: this rank's part is.",
        (
            _step("the step whose state it holds"),
            _KIND_OF_SAVE,
            _text("path", "where it is"),
            _CONTENT,
            Field("files", TEXTS, "its files as far as this process wrote them, relative to its folder", optional=True),
            _name(
                "tensors",
                "digest of what is in its tensors; not of random generators and single numbers",
                optional=True,
            ),
            Field("holds", TEXTS, "whose state this process put into it", optional=True, values=("model", "optimizer")),
            _size("bytes", "its size", "bytes", BYTES_MAX),
            Field("duration_ns", INTEGER, "from its start", unit="ns", optional=True, least=0, most=MONO_NS_MAX),
        ),
    ),
    Event(
        "checkpoint.failed",
        ("trainer",),
        "A checkpoint could not be saved.",
        (_step("the step whose state it would hold"), _KIND_OF_SAVE, _text("error", "why")),
    ),
    Event(
        "notice",
        ("trainer", "agent"),
        "A notice that the node will be taken was seen.",
        (
            _name(
                "source",
                "how",
                optional=True,
                values=("signal", "ec2", "gcp", "azure", "peer", "straggler"),
            ),
        ),
    ),
    Event(
        "anomaly",
        ("trainer",),
        "The trainer noticed that something is wrong.",
        (
            _name("kind", "what", optional=True, values=ANOMALIES),
            _text("detail", "in words"),
            Field("at_step", INTEGER, "the step that it is about", "steps", optional=True, least=0, most=STEP_MAX),
            _rank("suspect", "the rank that it is about, where one can be named"),
            Field(
                "excess_ns",
                INTEGER,
                "of a straggler: its own time a step, above the usual of all ranks",
                unit="ns",
                optional=True,
                least=0,
                most=MONO_NS_MAX,
            ),
            _size("rate_bytes", "of memory that grows: how much more it becomes in a second", "bytes/s", BYTES_MAX),
            _size("free_bytes", "of memory that grows: how much is left", "bytes", BYTES_MAX),
        ),
    ),
    Event(
        "usage",
        ("trainer",),
        "What the node's network links, memory and GPUs did, read now and then by its first worker.",
        (
            _size("memory_bytes", "in use, by all that share its memory limit", "bytes", BYTES_MAX),
            _size("memory_bytes_limit", "that limit: of its control group, or all memory", "bytes", BYTES_MAX),
            _name(
                "namespace", "machine and network namespace: nodes with the same one share their links", optional=True
            ),
            Field(
                "links",
                OBJECTS,
                "network interfaces, without loopback",
                fields=(
                    _name("link", "its name"),
                    _size("received_bytes", "since the interface came up", "bytes", BYTES_MAX),
                    _size("sent_bytes", "since the interface came up", "bytes", BYTES_MAX),
                ),
                optional=True,
            ),
            Field(
                "gpus",
                OBJECTS,
                "as NVIDIA's library tells; left out where there is none",
                fields=(
                    _size("gpu", "its number on this node", most=GPUS_PER_NODE_MAX, optional=False),
                    Field("busy_percent", NUMBER, "part of the last moments in which it worked", optional=True),
                    _size("memory_bytes", "in use", "bytes", BYTES_MAX),
                    _size("memory_bytes_total", "of the GPU", "bytes", BYTES_MAX),
                    _size("nvlink_bytes", "sent and received on all its NVLinks", "bytes", BYTES_MAX),
                ),
                optional=True,
            ),
        ),
    ),
    Event(
        "flight_recorder",
        ("trainer",),
        "The newest collective of one of this rank's process groups, told when the training hung.",
        (
            _name("group", "the process group"),
            _size("number", "which collective of the group it is; ranks count alike", most=2**53, optional=False),
            _name("operation", "what it does, such as `nccl:all_reduce`"),
            Field("over", FLAG, "whether this rank was through with it"),
            _name("code", "the line of code that began it", optional=True),
        ),
    ),
    Event(
        "layer_norms",
        ("trainer",),
        "Norms by layer, when they were asked for or the loss spikes.",
        (
            _step("the step whose gradients these are"),
            Field("layers", OBJECTS, "one for each layer", fields=LAYER),
        ),
    ),
    Event(
        "samples.left_out",
        ("trainer",),
        "The trainer has gone back before a spike of the loss, and leaves out the samples that it met there, once.",
        (
            Field("at_step", INTEGER, "the step at which it went back", "steps", least=0, most=STEP_MAX),
            Field("first", INTEGER, "first place in the shuffled order", "samples", least=0, most=SAMPLE_MAX),
            Field("count", INTEGER, "how many places from there", "samples", least=0, most=SAMPLES_MAX),
            _text("detail", "in words"),
        ),
    ),
    Event(
        "observer.failed",
        ("trainer", "agent"),
        "Something of the process is not observed any more; the training goes on.",
        (_name("signal", "what is not observed"), _text("error", "why")),
    ),
    Event(
        "failpoint",
        ("trainer", "agent"),
        "An armed failpoint was reached.",
        (_name("name", "which one"),),
    ),
    Event(
        "exiting",
        ("trainer", "agent"),
        "The process ends by itself, and says why.",
        (
            _code("its exit code"),
            _text(
                "reason",
                "`completed`, `drained`, `peer lost`, …; `error`: the process failed by itself, not because a peer or "
                "a fault elsewhere failed",
            ),
            _step("the last step it did", optional=True),
            _text("error", "the first error that this process met, with its type"),
        ),
    ),
)

_AGENT = (
    Event("agent.started", ("agent",), "The launcher's code runs."),
    Event(
        "agent.rendezvous",
        ("agent",),
        "The launcher waits for the others (`begin`), or all are there (`end`).",
        (
            _edge(),
            _rank("node_rank", "this node's rank"),
            _size("nodes", "launchers in the job", "nodes"),
            _size("round", "how often they have met", most=INCARNATION_MAX),
        ),
    ),
    Event(
        "agent.store_found",
        ("agent",),
        "The launcher found the rendezvous store.",
        (_name("host", "where it is", optional=True), _size("port", "its port", most=65535)),
    ),
    Event(
        "worker.exit",
        ("agent",),
        "The launcher saw a worker's end.",
        (
            _rank("local_rank", "the worker's rank on this node", least=-1),
            _rank("rank", "the worker's rank in the job", least=-1),
            _PID,
            _code("exit code; negative: killed by that signal"),
        ),
    ),
    Event("agent.exiting", ("agent",), "The launcher ends.", (_code("its exit code"),)),
)

REHEARSAL_ENDS = ("settled", "aborted", "stopped", "skipped", "job_ended", "never_began")
PEOPLE = ("detected", "acknowledged", "mitigated", "note", "stop", "lift", "skip", "continue", "inject")
_GAMEDAY = (
    Event(
        "gameday.started",
        ("harness",),
        "A game day begins: several rehearsals on this job, by a schedule.",
        (_name("name", "its name"), _text("title", "its title"), _size("entries", "entries of its schedule")),
    ),
    Event(
        "gameday.steady",
        ("harness",),
        "Whether the job was steady, as the schedule asks before it injects anything.",
        (Field("ok", FLAG, "whether it was"), _text("reason", "what was lacking, or what was seen")),
    ),
    Event(
        "gameday.entry",
        ("harness",),
        "An entry of the schedule begins or ends.",
        (
            _size("entry", "its place in the schedule, from 0"),
            _name("kind", "what it is: a scenario, a pause, …"),
            Field("edge", TEXT, "begin or end", values=("begin", "end")),
            _text("reason", "how it ended"),
        ),
    ),
    Event(
        "gameday.person",
        ("harness",),
        "Somebody pressed a button or left a note.",
        (
            Field("action", TEXT, "what they did", values=PEOPLE),
            Field("role", TEXT, "whose token it was", values=("observer", "participant", "master")),
            _text("text", "what they wrote"),
            _name("who", "the name that they gave", optional=True),
        ),
    ),
    Event(
        "gameday.alert",
        ("harness",),
        "An alert of somebody's own alerting arrived.",
        (
            _name("name", "the alert's name"),
            Field("status", TEXT, "what it says", values=("firing", "resolved")),
            _text("summary", "what it says in words"),
            _name("fingerprint", "of its labels: alerts of one name are told apart by it", optional=True),
        ),
    ),
    Event(
        "gameday.probe",
        ("harness",),
        "A question of the user's own was asked.",
        (
            _name("name", "the probe's name"),
            Field("moment", TEXT, "when", values=("before", "during", "after")),
            Field("ok", FLAG, "whether it held"),
            _text("detail", "what came back"),
            _name("rehearsal", "around which rehearsal", optional=True),
        ),
    ),
    Event(
        "gameday.blocked",
        ("harness",),
        "From now on nothing is injected, until a person lifts it.",
        (_text("reason", "why"),),
    ),
    Event("gameday.lifted", ("harness",), "Faults may be injected again.", (_text("reason", "why"),)),
    Event(
        "gameday.finished",
        ("harness",),
        "The schedule is over; the job may go on.",
        (
            Field("outcome", TEXT, "how", values=("completed", "budget", "probe", "not_steady", "job_ended")),
            _text("reason", "why"),
        ),
    ),
)

_HARNESS = (
    Event(
        "plan",
        ("harness",),
        "The whole plan: the first event is that of the job. Each of several rehearsals on one job has one of its own.",
        (
            Field("plan", OBJECT, "the plan, as in plan.json", fields=PLAN),
            _name("rehearsal", "whose plan it is, where a job has several", optional=True),
        ),
    ),
    Event(
        "rehearsal.started",
        ("harness",),
        "The faults of a rehearsal may fire from now on.",
        (_name("rehearsal", "its name"),),
    ),
    Event(
        "rehearsal.finished",
        ("harness",),
        "The rehearsal is over.",
        (
            _name("rehearsal", "its name"),
            Field("outcome", TEXT, "how it ended", values=REHEARSAL_ENDS),
            _text("reason", "why"),
        ),
    ),
    Event("environment", ("harness",), "Facts about the machine and its software, each a field."),
    Event(
        "host.load",
        ("harness",),
        "What others than the job's nodes took of the CPUs of the host that they share, since the event before it.",
        (Field("others", NUMBER, "part of all CPUs, 0 to 1"),),
    ),
    Event(
        "node.allocated",
        ("harness",),
        "The job was given a node.",
        (*_place(), _size("gpus", "GPUs on it", "GPUs", GPUS_PER_NODE_MAX)),
    ),
    Event("node.released", ("harness",), "A node was taken or given back.", (*_place(), _text("reason", "why"))),
    Event(
        "process.exit",
        ("harness",),
        "The command on a node ended.",
        (*_place(), _code("exit code; negative: killed by that signal")),
    ),
    Event("fault.armed", ("harness",), "The fault waits for its moment.", (_FAULT,)),
    Event(
        "fault.postponed",
        ("harness",),
        "The fault is due and must wait for others.",
        (_FAULT, _text("reason", "which limit")),
    ),
    Event("fault.injecting", ("harness",), "The fault begins to act.", (_FAULT,)),
    Event(
        "fault.injected",
        ("harness",),
        "The fault acts from now on.",
        (
            _FAULT,
            _name("kind", "the kind of fault", optional=True),
            Field("targets", OBJECTS, "what it acts on", optional=True, most=RANKS_MAX, fields=TARGET),
            Field("may", TEXTS, "what may come of it; none: told by the flags", optional=True, values=MAY),
            _name("lasts", "how long it must act, like `10s`; none: as long as it takes", optional=True),
            _size("notice_ns", "how long after a notice it takes the node; none: no notice", "ns", MONO_NS_MAX),
            Field("freezes", FLAG, "whether its targets do nothing as long as it lasts", optional=True),
            Field("graceful", FLAG, "whether its victims are asked to end, and may exit by themselves", optional=True),
            Field("network", FLAG, "whether it acts on the network", optional=True),
            Field("clocks", FLAG, "whether it sets clocks wrong", optional=True),
            Field("preempts", FLAG, "whether it is a preemption: the owner of a node takes it back", optional=True),
            Field("damages", FLAG, "whether it damages checkpoints that are written", optional=True),
            Field("replaced", FLAG, "whether a node that it takes comes back; none: it takes none", optional=True),
            _size("spoilt_steps", "it spoils the batches of so many steps", "steps", STEP_MAX),
            *(Field(f"{each}s", FLAG, f"whether it may {each}; only without `may`", optional=True) for each in MAY),
        ),
    ),
    Event("fault.taking", ("harness",), "The target is killed now.", (_FAULT, *_place(optional=True))),
    Event(
        "fault.notice_read",
        ("harness",),
        "The node asked for its notice.",
        (_FAULT, *_place(optional=True), _size("times", "how often", most=BYTES_MAX)),
    ),
    Event(
        "checkpoint.published",
        ("harness",),
        "The harness saw a finished checkpoint for the first time, or saw that its bytes have changed.",
        (
            _text("path", "its folder or first file, below the run's", optional=False),
            _name("layout", "how it looks", optional=True),
            _step("whose state it holds; none: it is not known", optional=True),
            _size("bytes", "its size", "bytes", BYTES_MAX),
            _name("sha256", "digest of its files; none: there was no time for it", optional=True),
            Field("sampled", FLAG, "whether samples were digested: its files have over 256 MiB", optional=True),
            _name("tensors", f"digest of its tensors, {_TENSORS}", optional=True),
            _size("tensor_count", "how many these are", most=BYTES_MAX),
            _size("tensor_bytes", "their bytes", "bytes", BYTES_MAX),
            _size("zero_bytes", "bytes of those tensors that are zero from end to end", "bytes", BYTES_MAX),
            Field("tensor_digests", TEXTS, "the largest of them, at most 512, as `BYTES DIGEST` each", optional=True),
        ),
    ),
    Event(
        "checkpoint.removed",
        ("harness",),
        "A checkpoint that the harness saw is no longer there.",
        (_text("path", "as it was published", optional=False), _step("whose state it held", optional=True)),
    ),
    Event(
        "checkpoint.left",
        ("harness",),
        "What the harness saw in the store when all nodes had ended.",
        (
            Field("checkpoints", OBJECTS, "newest first, at most 100", fields=LEFT),
            _size("count", "how many there are", most=BYTES_MAX, optional=False),
            _name("layout", "how they look", optional=True),
        ),
    ),
    Event(
        "checkpoint.unseen",
        ("harness",),
        "The harness cannot see the store, or a part of it: what was not published may have been saved all the same.",
        (_text("why", "what hides it", optional=False), _text("path", "what cannot be read; none: the whole store")),
    ),
    Event(
        "fault.damaged",
        ("harness",),
        "A file of a finished checkpoint is no longer what was saved.",
        (
            _FAULT,
            _text("path", "the file", optional=False),
            _text("checkpoint", "the folder or first file of the checkpoint"),
            Field("names", TEXTS, "what a restore may call it: its own name, the file's, the pointer's", optional=True),
            _step("of the checkpoint; none: it is not known", optional=True),
            _name("sha256", "digest of the checkpoint as the damage left it", optional=True),
            _size("copies", "other checkpoints of the same step", most=BYTES_MAX),
            _name("part", "what was struck", values=("tensor", "header", "metadata", "pointer")),
            _name("how", "what was done to it", optional=True),
            _size("tensor_bytes", "bytes of tensors that are lost or different", "bytes", BYTES_MAX),
        ),
    ),
    Event("fault.effect", ("harness",), "The fault's effect was measured.", _EFFECT),
    Event(
        "fault.traffic",
        ("harness",),
        "What of the training's own traffic went through what a network fault disturbs.",
        (
            _FAULT,
            _name("node", "the node whose traffic is disturbed"),
            _size("measured", "payload of the workers' TCP connections; none: it was not measured", "bytes", BYTES_MAX),
            _size("least", "less proves no training; none: nothing follows", "bytes", BYTES_MAX),
            Field("seconds", NUMBER, "how long it was counted", unit="s", optional=True),
            Field("ok", FLAG, "whether that is enough", optional=True),
            _text("detail", "what was counted"),
        ),
    ),
    Event(
        "fault.recovered",
        ("harness",),
        "Every rank passed the furthest step since the fault.",
        (_FAULT, _step("that step", optional=True)),
    ),
    Event("fault.healed", ("harness",), "The fault was undone.", (_FAULT,)),
    Event(
        "fault.ended",
        ("harness",),
        "After it was undone: whether its effect is over, measured as its beginning was.",
        _EFFECT,
    ),
    Event("fault.cancelled", ("harness",), "The run ended before the fault could act.", (_FAULT,)),
    Event(
        "fault.failed",
        ("harness",),
        "The fault could not act, or could not be undone.",
        (_FAULT, _text("error", "why"), _text("reason", "why"), _text("detail", "more")),
    ),
    Event(
        "clock",
        ("harness",),
        "The wall clock of another host was compared with the harness's.",
        (
            _name("host", "the host, by the name that its writers give"),
            Field(
                "offset_ns",
                INTEGER,
                "the host's clock minus the harness's",
                unit="ns",
                least=-OFFSET_NS_MAX,
                most=OFFSET_NS_MAX,
            ),
            Field(
                "uncertainty_ns",
                INTEGER,
                "the true offset is no further away than this",
                unit="ns",
                optional=True,
                least=0,
                most=OFFSET_NS_MAX,
            ),
        ),
    ),
    Event(
        "drill.started",
        ("harness",),
        "After the job: its last checkpoint is restored once more, as a drill.",
        (_step("of the newest committed checkpoint", optional=True),),
    ),
    Event(
        "drill.finished",
        ("harness",),
        "The drill is over.",
        (
            Field(
                "outcome",
                TEXT,
                "how it ended; untold: the job had nothing left to do; error: the drill itself could not be made",
                values=("restored", "scratch", "failed", "timeout", "untold", "error"),
            ),
            _step("the step of the last checkpoint", optional=True),
            _text("reason", "why"),
            Field(
                "restored_step",
                INTEGER,
                "the step that was restored",
                unit="steps",
                optional=True,
                least=0,
                most=STEP_MAX,
            ),
            *_COST,
        ),
    ),
    Event(
        "second_restart.started",
        ("harness",),
        "After the job: its command starts once more, from the save before the last one.",
        (_step("of the newest committed checkpoint, which is removed from the copy", optional=True),),
    ),
    Event(
        "second_restart.finished",
        ("harness",),
        "The second restart is over.",
        (
            Field(
                "outcome",
                TEXT,
                "how it ended; skipped: there was nothing to start from; error: it could not be made",
                values=("done", "failed", "timeout", "skipped", "error"),
            ),
            _step("of the save before the last one", optional=True),
            Field(
                "saved_step",
                INTEGER,
                "of the newest save when it was over",
                unit="steps",
                optional=True,
                least=0,
                most=STEP_MAX,
            ),
            _text("reason", "why"),
            *_COST,
        ),
    ),
    Event(
        "reader.failed",
        ("harness",),
        "What the trainer writes is no longer read: steps and more may be missing from this log.",
        (_text("path", "the file or folder, below the run's", optional=False), _text("error", "why")),
    ),
    Event(
        "cleanup.failed",
        ("harness",),
        "Something could not be undone at the end of the run; `chaos heal` tries it again.",
        (_text("error", "what, and why"),),
    ),
    Event("abort", ("harness",), "The run is given up.", (_text("reason", "why"),)),
    Event(
        "run.finished",
        ("harness",),
        "The job is over. Only restarts on copies of what it saved follow.",
        (
            Field(
                "outcome",
                TEXT,
                "how it ended",
                values=("completed", "failed", "aborted", "interrupted"),
            ),
            _text("reason", "why"),
            Field("drills", FLAG, "whether such restarts follow", optional=True),
        ),
    ),
)

EVENTS = _TRAINER + _AGENT + _HARNESS + _GAMEDAY

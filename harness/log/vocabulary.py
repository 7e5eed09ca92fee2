"""Declares each event of the event log, and its fields, once for all writers and readers.

Readers' checks and table columns, docs/events.md, and the JSON Schema of `chaos schema --events` are made from the
declarations in this file.

A reader of an event log ignores undeclared events and fields, because newer trainers may log more. A line is damaged
evidence if a declared field has the wrong type or exceeds its limits.
"""

from dataclasses import dataclass
from functools import partial

from harness.log.consequences import May
from harness.log.truth import Decision, Kind
from harness.node.emitter import AXES, BYTES_MAX, SCHEMA_VERSION, TELLS

# Kinds of values.
INTEGER = "integer"
NUMBER = "number"  # or one of NOT_FINITE, which JSON has no number for
SHARE = "share"  # from 0 to 1
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
SUSPECTS_MAX = 1024  # of one answer
LINE_MAX = 2**53
RUNS_MAX = 2**16  # in one step
SAMPLES_MAX = 2**24  # of one rank in one step
RANKS_MAX = 2**17
GPUS_PER_NODE_MAX = 1024
CODE_MAX = 2**32
PID_MAX = 2**31
INCARNATION_MAX = 10**6
SEED_MAX = 2**63 - 1
NAME_CHARS_MAX = 1000


@dataclass(frozen=True)
class Field:
    """One field of an event. `least` and `most` limit a number, or the length of a TEXT, LABEL or list of OBJECTS.

    `values` lists the field's known values. If `closed` is True, only the known values are allowed. `fields` are the
    fields of an OBJECT or of each object in OBJECTS; without `fields`, any object is allowed. `column` names the
    field's column in the table of steps.
    """

    kind: str
    name: str
    meaning: str
    unit: str = ""
    optional: bool = False
    least: int | None = None
    most: int | None = None
    values: tuple[str, ...] = ()
    closed: bool = False
    fields: tuple["Field", ...] = ()
    column: str = ""
    otherwise: int | None = None  # what the column holds where the field is not told

    @property
    def in_words(self) -> str:
        unit = f" Unit: {self.unit}." if self.unit else ""
        known = f" Known values: {', '.join(self.values)}." if self.values and not self.closed else ""
        return f"{self.meaning}.{unit}{known}"


@dataclass(frozen=True)
class Event:
    name: str
    roles: tuple[str, ...]  # of those who write it, the usual one first
    meaning: str
    fields: tuple[Field, ...]

    @property
    def in_words(self) -> str:
        return f"{self.meaning} Written by: {', '.join(self.roles)}."


_name = partial(Field, TEXT, most=NAME_CHARS_MAX)
_text = partial(Field, TEXT, optional=True)
_label = partial(Field, LABEL, optional=True, most=NAME_CHARS_MAX)
_flag = partial(Field, FLAG, optional=True)
_number = partial(Field, NUMBER, optional=True)
_ns = partial(Field, INTEGER, unit="ns", optional=True, least=0, most=MONO_NS_MAX)
_uncertainty = partial(Field, INTEGER, "uncertainty_ns", unit="ns", optional=True, least=0, most=OFFSET_NS_MAX)
_code = partial(Field, INTEGER, "code", optional=True, least=-CODE_MAX, most=CODE_MAX)
_rank = partial(Field, INTEGER, optional=True, least=0, most=RANKS_MAX - 1)


def _size(name: str, meaning: str, unit: str = "", most: int = RANKS_MAX, optional: bool = True) -> Field:
    return Field(INTEGER, name, meaning, unit, optional, least=0, most=most)


_bytes = partial(_size, unit="bytes", most=BYTES_MAX)


def _step(meaning: str, optional: bool = False, name: str = "step", column: str = "") -> Field:
    return Field(INTEGER, name, meaning, "steps", optional, least=0, most=STEP_MAX, column=column)


def _spent(name: str, meaning: str) -> Field:
    return Field(INTEGER, name, meaning, "ns", optional=True, least=0, most=MONO_NS_MAX, column=name, otherwise=0)


def _column(name: str, meaning: str, column: str, unit: str = "samples", most: int = SAMPLE_MAX) -> Field:
    return Field(INTEGER, name, meaning, unit, optional=True, least=-1, most=most, column=column, otherwise=-1)


def _outcome(meaning: str, *values: str) -> Field:
    return Field(TEXT, "outcome", meaning, values=values)


def _place(optional: bool = False) -> tuple[Field, Field]:
    which = "which node of that name: 1, and one more for each replacement"
    return _name("node", "the node's name", optional=optional), _size("incarnation", which, most=INCARNATION_MAX)


_EDGE = Field(TEXT, "edge", "which end of it", optional=True, values=("begin", "end"), closed=True)
_FAULT = _name("fault", "the fault's id in the plan")
_REASON = _text("reason", "why")
REQUEUED = "requeued"  # reason of `node.released`: the engine put the job back into its queue
_KIND_OF_SAVE = _name("kind", "why it is saved", optional=True, values=("periodic", "emergency", "final"))
_CONTENT = _label("content", "names what the checkpoint holds: the same when it is saved and loaded")
_PID = _size("pid", "process id, as its node sees it", most=PID_MAX)
_TENSORS = (
    "in whatever files and order, without counters (up to 16 bytes) and states of random generators (multiples of "
    "5,056 or 5,072 bytes); none: none of its files has a known format of tensors"
)

GAVE_UP = ("straggler", "gpu")  # sources of a notice that a node gives to itself, as it is unfit

ANOMALIES = (
    *("hang", "nonfinite", "gradient", "straggler", "topology", "replica", "data", "data_skew", "out_of_memory"),
    *("stagnation", "slow", "data_wait", "checkpoint_late", "divergence", "memory", "gpu"),  # see `emitter.abnormal`
)

SHOWN = ("loss", "grad_norm", "lr", "count")  # figures of a step that may show a change of the job's command

COMMON = (
    _name("event", "the event's name"),
    Field(INTEGER, "wall_ns", "the writer's wall clock, since 1970", "ns", True, -WALL_NS_MAX, WALL_NS_MAX),
    _ns("mono_ns", "the writer's monotonic clock; the event's time", optional=False, column="end"),
    _size("dropped", "events lost just before this one, because the disk took no more", "events", BYTES_MAX),
    _size("line", "number of this line among those that its writer tried to write; the header is 0", most=LINE_MAX),
    _ns("line_fork", "names the fork of the writer that wrote this line; it numbers its own lines, from 0"),
)

_WRITERS = ("trainer", "agent", "harness")
HEADER = (
    Field(INTEGER, "schema", "version of this vocabulary", least=SCHEMA_VERSION, most=SCHEMA_VERSION),
    _name("role", "who writes; without it nothing of the file is judged", optional=True, values=_WRITERS),
    _name("writer", "the file's name without `.jsonl`", optional=True),
    _name("host", "the host's name; `clock` events use the same", optional=True),
    _name("clock", "the kernel's boot id: writers with the same one share the monotonic clock", optional=True),
    _PID,
    *_place(optional=True),
    _rank("rank", "the worker's rank in the job"),
    _rank("local_rank", "the worker's rank on its node"),
    _size("world_size", "how many ranks the job has", "ranks"),
    Field(TEXTS, "tells", "what kinds of evidence this writer tells", optional=True, values=TELLS),
    _uncertainty("the times of this file are no more exact than this; only in files that the harness writes"),
    Field(INTEGER, "wall_ns", "the writer's wall clock, since 1970", "ns", False, -WALL_NS_MAX, WALL_NS_MAX),
    _ns("mono_ns", "the writer's monotonic clock", optional=False),
    _size("line", "the writer numbers its lines; an older one does not", most=0),
)

_COST = (
    Field(NUMBER, "seconds", "how long it took", "s", optional=True, least=0),
    Field(NUMBER, "gpu_seconds", "the same, for all its GPUs together", "GPU-s", optional=True, least=0),
)
_TARGET = (*_place(optional=True), _rank("rank", "the rank; none: the whole node"))
_LEFT = (
    _text("path", "as it would be published", optional=False),
    _step("whose state it holds; none: it is not known", optional=True),
    Field(FLAG, "whole", "whether it is finished"),
    _bytes("bytes", "its size"),
)
_BESIDE = (
    _text("file", "as in `files`", optional=False),
    Field(TEXTS, "tensor_digests", "its largest tensors, at most 64, as of a published checkpoint"),
)
_EFFECT = (
    _FAULT,
    _number("measured", "what was measured"),
    _number("expected", "what the plan asks for"),
    _name("unit", "of both", optional=True),
    Field(FLAG, "ok", "whether that is near enough; the fault's own rule decides"),
    _text("detail", "how it was measured"),
)
_FALLBACK = (_text("source", "its path"), _text("reason", "what is wrong with it"))
_LINK = (
    _name("link", "its name"),
    _bytes("received_bytes", "since the interface came up"),
    _bytes("sent_bytes", "since the interface came up"),
)
_PEER = (
    _name("local", "this node's address"),
    _name("peer", "the other end's address"),
    _size("rtt_us", "round trip of the slowest connection, smoothed", "µs", MONO_NS_MAX),
    _size("sent_again", "segments that were sent more than once, since the connections began", "segments", BYTES_MAX),
    _size("stuck", "connections on which nothing comes back at the moment", "connections", BYTES_MAX),
)
_GPU = (
    _size("gpu", "its number on this node", most=GPUS_PER_NODE_MAX, optional=False),
    _number("busy_percent", "part of the last moments in which it worked"),
    _bytes("memory_bytes", "in use"),
    _bytes("memory_bytes_total", "of the GPU"),
    _bytes("nvlink_bytes", "sent and received on all its NVLinks"),
    _size("temperature_c", "its temperature", "°C", 1000),
    _size("throttle_reasons", "why its clocks are low: bits, as NVML's `nvmlClocksEventReason…`", most=2**53),
    _size("ecc_corrected", "ECC errors that were corrected, since the driver was loaded", "errors", LINE_MAX),
    _size("ecc_uncorrected", "ECC errors that could not be corrected, since then", "errors", LINE_MAX),
    _size("nvlink_errors", "errors of all its NVLinks, since then", "errors", LINE_MAX),
    _size("xid", "number of the newest XID event since the first look", most=2**32),
    _size("xids", "XID events since the first look", "events", LINE_MAX),
    _flag("lost", "true: it has fallen off the bus"),
)
_AXIS = (
    _name("axis", "what the ranks along it share or split", values=AXES),
    Field(INTEGER, "index", "where this rank is on it", least=0, most=RANKS_MAX - 1),
    _size("size", "how many there are", "ranks", optional=False),
)
_SUSPECT = (
    _rank("rank", "the rank"),
    _name("node", "the node", optional=True),
    _size("gpu", "the GPU, by its number on `node`", most=GPUS_PER_NODE_MAX),
    _name("link", "the link", optional=True),
    _name("file", "the file", optional=True),
)
_LAYER = (
    _name("name", "the layer"),
    _number("gradient", "norm of its gradient, before it was clipped"),
    _number("weights", "norm of its weights"),
)

_CHECKPOINT = (
    _size("every_steps", "one periodic checkpoint in so many steps", "steps", STEP_MAX),
    _name("every", "or one after so much time, such as `10m`", optional=True),
)
_WORKLOAD = (
    _size("nodes", "nodes of the job", "nodes"),
    _size("max_nodes", "the job uses so many at most, the others are spares; none: all of them", "nodes"),
    _size("min_nodes", "the job may go on with so many", "nodes"),
    _size("ranks_per_node", "workers, each with one GPU", "ranks", GPUS_PER_NODE_MAX),
    Field(OBJECT, "mesh", "ranks along each axis, outermost first, as the scenario says it", optional=True),
    Field(OBJECT, "node_labels", "places of the nodes in each failure domain, by label", optional=True),
    _size("steps", "so many steps are to be done", "steps", STEP_MAX),
    Field(OBJECT, "checkpoint", "how the trainer saves", optional=True, fields=_CHECKPOINT),
)
_PLANNED_TARGET = (_size("node_index", "place of the node, from 0"), _rank("rank", "the rank; none: the whole node"))
_PLANNED_FAULT = (
    _name("id", "the fault's id"),
    _name("fault", "the kind of fault", optional=True),
    Field(OBJECT, "parameters", "the fault's parameters", optional=True),
    Field(OBJECT, "when", "its trigger", optional=True),
    Field(OBJECTS, "targets", "what it is to act on", optional=True, most=RANKS_MAX, fields=_PLANNED_TARGET),
    _flag("kills", "whether processes of the target are meant to die"),
)
_SCENARIO = (
    _text("name", "the scenario's name"),
    _text("title", "its title"),
    Field(TEXTS, "tags", "its tags", optional=True),
    _number("price_per_gpu_hour", "what a GPU costs", "dollars/h"),
    Field(OBJECT, "labels", "texts for reports, like project and team", optional=True),
    _text("file_digest", "SHA-256 of the scenario's file"),
)
_ABORT = (_ns("if_no_step_for_ns", "so long nobody does a step"),)
_PLAN = (
    Field(INTEGER, "seed", "decides all that is random", optional=True, least=-SEED_MAX, most=SEED_MAX),
    _name("run_id", "the run's id", optional=True),
    _name("backend", "where the nodes are", optional=True),
    Field(OBJECT, "scenario", "what the plan was made from", optional=True, fields=_SCENARIO),
    Field(OBJECT, "workload", "the job", optional=True, fields=_WORKLOAD),
    Field(OBJECTS, "faults", "what is to be done to it", optional=True, fields=_PLANNED_FAULT),
    Field(OBJECT, "expect", "what must hold, by score", optional=True),
    Field(OBJECT, "abort", "when the run is given up", optional=True, fields=_ABORT),
)

# Each event's name, its meaning, and its fields.
_Events = dict[str, tuple[str, *tuple[Field, ...]]]

_PHASES = ("startup", "rendezvous", "restore", "drain", "checkpoint.snapshot", "checkpoint.write", "checkpoint.publish")
_STEP_BY = ("ledger", "framework", "optimizer", "checkpoint")
_TRAINER: _Events = {
    "started": ("The worker's code runs.",),
    "rendezvous": (
        "The process group is ready.",
        _size("world_size", "ranks in the group; as in the header where it is not told", "ranks"),
        _label("world", "names this group; each new group has another name"),
        _size("data_samples", "samples in one pass over the data", "samples", SAMPLE_MAX),
    ),
    "coordinates": (
        "Where this rank is in the job's mesh, as far as it is known. A later event replaces an earlier one.",
        Field(OBJECTS, "axes", "one for each axis", most=len(AXES), fields=_AXIS),
    ),
    "restored": (
        "The state was put back; the next step is the one after `step`.",
        _step("the step of this state; 0: from scratch; not told: unknown, and steps begin at 1 again", optional=True),
        _text("source", "path of the checkpoint, `peer`, or `scratch`"),
        _CONTENT,
        _label("saved", "what it held when it was committed; another `content` is damage, or a save that was not seen"),
        _name("step_by", "what tells the step, the most trusted that knows it", optional=True, values=_STEP_BY),
        Field(TEXTS, "parts", "paths of its parts, where it was read from several", optional=True),
        Field(TEXTS, "entered", "what the state was put into", optional=True, values=("model", "optimizer")),
        Field(OBJECTS, "fallback", "checkpoints that were passed over", optional=True, fields=_FALLBACK),
    ),
    "step": (
        "An optimizer step was completed. `mono_ns` is its end.",
        _step("number of completed steps; the first one is 1", column="step"),
        _ns("begin_ns", "when it began, on the monotonic clock; else when the step before ended", column="begin"),
        _number("loss", "the loss", column="loss"),
        _number("grad_norm", "norm of the gradient", column="grad_norm"),
        _number("lr", "learning rate", column="lr"),
        _label("digest", "digest of the global batch's sample indices, or of this rank's inputs", column="digest"),
        _column("first", "the global batch's first place in the shuffled order", "first"),
        _column("count", "how many places it has there", "count"),
        _column("rank_samples", "how many different samples this rank computed with in this step", "rank_samples"),
        Field(RUNS, "samples", "indices in the data set that this rank consumed in it, in order", "samples", True),
        _column("epoch", "which pass over the data set `samples` belong to", "data_pass", "", STEP_MAX),
        _flag("applied", "false: the update was skipped, as over an overflow", column="applied", otherwise=1),
        _spent("data_ns", "time in this step blocked on data"),
        _spent("checkpoint_ns", "time in this step blocked on checkpointing"),
        _spent("sync_ns", "time of the gradient all-reduce, if measured"),
        _label("weights", "digest of the weights of this step; replicas have the same", column="weights"),
        _spent("weights_ns", "time in this step spent on that digest"),
    ),
    "phase": ("A phase begins or ends.", _name("name", "the phase", values=_PHASES), _EDGE),
    "checkpoint.started": (
        "A checkpoint was begun.",
        _step("the step whose state it holds"),
        _KIND_OF_SAVE,
        _text("path", "the first file or folder that is written"),
    ),
    "checkpoint.committed": (
        "A checkpoint is whole and can be restored. Where several ranks tell it of one step: this rank's part is.",
        _step("the step whose state it holds"),
        _KIND_OF_SAVE,
        _text("path", "where it is"),
        _CONTENT,
        Field(TEXTS, "files", "its files as far as this process wrote them, relative to its folder", optional=True),
        _name("tensors", "digest of its tensors, without random generators and single numbers", optional=True),
        Field(TEXTS, "holds", "whose state this process put into it", optional=True, values=("model", "optimizer")),
        _size("micro_batches", "of the step after it, how many had been done when it was begun", most=STEP_MAX),
        _size("micro_batches_a_step", "how many the last step before it took", most=STEP_MAX),
        _bytes("bytes", "its size"),
        _ns("write_ns", "from its start until this process had written its last file"),
        _ns("duration_ns", "from its start"),
    ),
    "checkpoint.failed": (
        "A checkpoint could not be saved.",
        _step("the step whose state it would hold"),
        _KIND_OF_SAVE,
        _text("error", "why"),
    ),
    "notice": (
        "A notice that the node will be taken was seen.",
        _name("source", "how", optional=True, values=("signal", "ec2", "gcp", "azure", "peer", *GAVE_UP)),
    ),
    "anomaly": (
        "The trainer noticed that something is wrong.",
        _name("kind", "what", optional=True, values=ANOMALIES),
        _text("detail", "in words"),
        _step("the step that it is about", optional=True, name="at_step"),
        _rank("suspect", "the rank that it is about, where one can be named"),
        _ns("excess_ns", "of a straggler: its own time a step, above the usual of all ranks"),
        _size("rate_bytes", "of memory that grows: how much more it becomes in a second", "bytes/s", BYTES_MAX),
        _bytes("free_bytes", "of memory that grows: how much is left"),
    ),
    "diagnosis": (
        "An answer to “who was it?”, told when it is known.",
        Field(TEXT, "kind", "what broke", values=tuple(each.value for each in Kind), closed=True),
        Field(OBJECTS, "who", "each accused part; none: nobody", optional=True, most=SUSPECTS_MAX, fields=_SUSPECT),
        Field(SHARE, "sure", "how sure it is", optional=True),
        Field(TEXT, "decision", "what is done", "", True, values=tuple(each.value for each in Decision), closed=True),
        _text("why", "in words"),
    ),
    "usage": (
        "What the node's network links, memory and GPUs did, read now and then by its first worker.",
        _bytes("memory_bytes", "in use, by all that share its memory limit"),
        _bytes("memory_bytes_limit", "that limit: of its control group, or all memory"),
        _name("namespace", "machine and network namespace: nodes with the same one share their links", optional=True),
        Field(OBJECTS, "links", "network interfaces, without loopback", optional=True, fields=_LINK),
        Field(OBJECTS, "peers", "TCP connections with each other host", optional=True, fields=_PEER),
        Field(OBJECTS, "gpus", "as NVIDIA's library tells; left out where there is none", optional=True, fields=_GPU),
    ),
    "flight_recorder": (
        "The newest collective of one of this rank's process groups, told when the training hung.",
        _name("group", "the process group"),
        _size("number", "which collective of the group it is; ranks count alike", most=2**53, optional=False),
        _name("operation", "what it does, such as `nccl:all_reduce`"),
        Field(FLAG, "over", "whether this rank was through with it"),
        _name("code", "the line of code that began it", optional=True),
    ),
    "layer_norms": (
        "Norms by layer, when they were asked for or the loss spikes.",
        _step("the step whose gradients these are"),
        Field(OBJECTS, "layers", "one for each layer", fields=_LAYER),
    ),
    "samples.left_out": (
        "The trainer has gone back before a spike of the loss, and leaves out the samples that it met there, once.",
        _step("the step at which it went back", name="at_step"),
        _size("first", "first place in the shuffled order", "samples", SAMPLE_MAX, optional=False),
        _size("count", "how many places from there", "samples", SAMPLES_MAX, optional=False),
        _text("detail", "in words"),
    ),
    "observer.failed": (
        "Something of the process is not observed any more; the training goes on.",
        _name("signal", "what is not observed"),
        _text("error", "why"),
    ),
    "failpoint": ("An armed failpoint was reached.", _name("name", "which one")),
    "exiting": (
        "The process ends by itself, and says why.",
        _code("its exit code"),
        _text(
            "reason",
            "`completed`, `drained`, `peer lost`, …; `error`: the process failed by itself, not because a peer or "
            "a fault elsewhere failed",
        ),
        _step("the last step it did", optional=True),
        _text("error", "the first error that this process met, with its type"),
    ),
}
_LAUNCHERS_TOO = ("notice", "diagnosis", "observer.failed", "failpoint", "exiting")

_AGENT: _Events = {
    "agent.started": ("The launcher's code runs.",),
    "agent.rendezvous": (
        "The launcher waits for the others (`begin`), or all are there (`end`).",
        _EDGE,
        _rank("node_rank", "this node's rank"),
        _size("nodes", "launchers in the job", "nodes"),
        _size("round", "how often they have met", most=INCARNATION_MAX),
    ),
    "agent.store_found": (
        "The launcher found the rendezvous store.",
        _name("host", "where it is", optional=True),
        _size("port", "its port", most=65535),
    ),
    "worker.exit": (
        "The launcher saw a worker's end.",
        _rank("local_rank", "the worker's rank on this node", least=-1),
        _rank("rank", "the worker's rank in the job", least=-1),
        _PID,
        _code("exit code; negative: killed by that signal"),
    ),
    "agent.exiting": ("The launcher ends.", _code("its exit code")),
}

_HARNESS: _Events = {
    "plan": (
        "The whole plan: the first event is that of the job. Each of several rehearsals on one job has one of its own.",
        Field(OBJECT, "plan", "the plan, as in plan.json", fields=_PLAN),
        _name("rehearsal", "whose plan it is, where a job has several", optional=True),
    ),
    "rehearsal.started": ("The faults of a rehearsal may fire from now on.", _name("rehearsal", "its name")),
    "rehearsal.finished": (
        "The rehearsal is over.",
        _name("rehearsal", "its name"),
        _outcome("how it ended", "settled", "aborted", "stopped", "skipped", "job_ended", "never_began"),
        _REASON,
    ),
    "environment": ("Facts about the machine and its software, each a field.",),
    "host.load": (
        "What others than the job's nodes took of the CPUs of the host that they share, since the event before it.",
        Field(NUMBER, "others", "part of all CPUs, 0 to 1"),
    ),
    "node.allocated": ("The job was given a node.", *_place(), _size("gpus", "GPUs on it", "GPUs", GPUS_PER_NODE_MAX)),
    "node.released": ("A node was taken or given back.", *_place(), _REASON),
    "process.exit": ("The command on a node ended.", *_place(), _code("exit code; negative: killed by that signal")),
    "fault.armed": ("The fault waits for its moment.", _FAULT),
    "fault.postponed": ("The fault is due and must wait for others.", _FAULT, _text("reason", "which limit")),
    "fault.injecting": ("The fault begins to act.", _FAULT),
    "fault.injected": (
        "The fault acts from now on.",
        _FAULT,
        _name("kind", "the kind of fault", optional=True),
        Field(OBJECTS, "targets", "what it acts on", optional=True, most=RANKS_MAX, fields=_TARGET),
        Field(TEXTS, "may", "what may come of it; none: told by the flags", optional=True, values=tuple(May)),
        _name("lasts", "how long it must act, like `10s`; none: as long as it takes", optional=True),
        _ns("notice_ns", "how long after a notice it takes the node; none: no notice"),
        _flag("freezes", "whether its targets do nothing as long as it lasts"),
        _flag("graceful", "whether its victims are asked to end, and may exit by themselves"),
        _flag("network", "whether it acts on the network"),
        _flag("clocks", "whether it sets clocks wrong"),
        _flag("preempts", "whether it is a preemption: the owner of a node takes it back"),
        _flag("damages", "whether it damages checkpoints that were complete before"),
        _flag("benign", "whether nothing is wrong: it explains no alarm, and no restart"),
        _flag("replaced", "whether a node that it takes comes back; none: it takes none"),
        _flag("must_leave", "whether no right decision keeps its node, so that somebody must react"),
        _flag("sticks", "whether it strikes each new life of its nodes, too, so that the job may leave them out"),
        _size("spoilt_steps", "it spoils the batches of so many steps", "steps", STEP_MAX),
        _flag("changes", "whether it changes the job's command on purpose"),
        _flag("updates_only", "whether that change concerns updates alone, such as the learning rate"),
        _name("shows", "a figure of a step that must be another one after the change", optional=True, values=SHOWN),
        _flag("kills", "whether it may kill; only without `may`"),
        _flag("stops", "whether it may stop; only without `may`"),
        _flag("spoils", "whether it may spoil; only without `may`"),
        _flag("drifts", "whether it may drift; only without `may`"),
        _flag("diverges", "whether it may diverge; only without `may`"),
        _flag("leaks", "whether it may leak; only without `may`"),
    ),
    "fault.taking": ("The target is killed now.", _FAULT, *_place(optional=True)),
    "fault.notice_read": (
        "The node asked for its notice.",
        _FAULT,
        *_place(optional=True),
        _size("times", "how often", most=BYTES_MAX),
    ),
    "checkpoint.published": (
        "The harness saw a finished checkpoint for the first time, or saw that its bytes have changed.",
        _text("path", "its folder or first file, below the run's", optional=False),
        _name("layout", "how it looks", optional=True),
        _step("whose state it holds; none: it is not known", optional=True),
        _bytes("bytes", "its size"),
        _ns("looked_ns", "begin of the last look at which it was not there, or had other bytes"),
        _name("sha256", "digest of its files; none: there was no time for it", optional=True),
        _flag("sampled", "whether samples were digested: its files have over 256 MiB"),
        _name("tensors", f"digest of its tensors, {_TENSORS}", optional=True),
        _size("tensor_count", "how many these are", most=BYTES_MAX),
        _bytes("tensor_bytes", "their bytes"),
        _bytes("zero_bytes", "bytes of those tensors that are zero from end to end"),
        Field(TEXTS, "tensor_digests", "the largest of them, at most 512, as `BYTES DIGEST` each", optional=True),
    ),
    "checkpoint.removed": (
        "A checkpoint that the harness saw is no longer there.",
        _text("path", "as it was published", optional=False),
        _step("whose state it held", optional=True),
    ),
    "checkpoint.left": (
        "What the harness saw in the store when all nodes had ended.",
        Field(OBJECTS, "checkpoints", "newest first, at most 100", fields=_LEFT),
        _size("count", "how many there are", most=BYTES_MAX, optional=False),
        _name("layout", "how they look", optional=True),
    ),
    "files.left": (
        "What else the harness saw in the folders that nodes may write, when all nodes had ended.",
        Field(TEXTS, "files", "in order of their names, at most 1000; the run's own id in them is {run_id}"),
        _size("count", "how many there are", most=BYTES_MAX, optional=False),
        Field(OBJECTS, "holding_tensors", "those with tensors, at most 20: an export", optional=True, fields=_BESIDE),
    ),
    "checkpoint.unseen": (
        "The harness cannot see the store, or a part of it: what was not published may have been saved all the same.",
        _text("why", "what hides it", optional=False),
        _text("path", "what cannot be read; none: the whole store"),
    ),
    "fault.damaged": (
        "A file of a finished checkpoint is no longer what was saved.",
        _FAULT,
        _text("path", "the file", optional=False),
        _text("checkpoint", "the folder or first file of the checkpoint"),
        Field(TEXTS, "names", "what a restore may call it: its own name, the file's, the pointer's", optional=True),
        _step("of the checkpoint; none: it is not known", optional=True),
        _name("sha256", "digest of the checkpoint as the damage left it", optional=True),
        _size("copies", "other checkpoints of the same step", most=BYTES_MAX),
        _name("part", "what was struck", values=("tensor", "header", "metadata", "pointer")),
        _name("how", "what was done to it", optional=True),
        _bytes("tensor_bytes", "bytes of tensors that are lost or different"),
        _flag("sealed", "digests were made right, so that only training shows the damage", optional=True),
    ),
    "fault.effect": ("The fault's effect was measured.", *_EFFECT),
    "fault.traffic": (
        "What of the training's own traffic went through what a network fault disturbs.",
        _FAULT,
        _name("node", "the node whose traffic is disturbed"),
        _bytes("measured", "payload of the workers' TCP connections; none: it was not measured"),
        _bytes("least", "less proves no training; none: nothing follows"),
        _number("seconds", "how long it was counted", "s"),
        _flag("ok", "whether that is enough"),
        _text("detail", "what was counted"),
    ),
    "fault.recovered": (
        "Every rank passed the furthest step before the fault. A replacement came earlier: `node.allocated`.",
        _FAULT,
        _step("that step", optional=True),
    ),
    "fault.healed": ("The fault was undone.", _FAULT),
    "fault.ended": ("After it was undone: whether its effect is over, measured as its beginning was.", *_EFFECT),
    "fault.cancelled": ("The fault is ended before its time: somebody stopped it, or the run ended.", _FAULT),
    "fault.failed": (
        "The fault could not act, or could not be undone.",
        _FAULT,
        _text("error", "why"),
        _REASON,
        _text("detail", "more"),
    ),
    "clock": (
        "The wall clock of another host was compared with the harness's.",
        _name("host", "the host, by the name that its writers give"),
        Field(INTEGER, "offset_ns", "the host's clock minus the harness's", "ns", False, -OFFSET_NS_MAX, OFFSET_NS_MAX),
        _uncertainty("the true offset is no further away than this"),
    ),
    "drill.started": (
        "After the job: its last checkpoint is restored once more, as a drill.",
        _step("of the newest committed checkpoint", optional=True),
    ),
    "drill.finished": (
        "The drill is over.",
        _outcome(
            "how it ended; untold: the job had nothing left to do; error: the drill itself could not be made",
            *("restored", "scratch", "failed", "timeout", "untold", "error"),
        ),
        _step("the step of the last checkpoint", optional=True),
        _REASON,
        _step("the step that was restored", optional=True, name="restored_step"),
        *_COST,
    ),
    "second_restart.started": (
        "After the job: its command starts once more, from the save before the last one.",
        _step("of the newest committed checkpoint, which is removed from the copy", optional=True),
    ),
    "second_restart.finished": (
        "The second restart is over.",
        _outcome(
            "how it ended; skipped: there was nothing to start from; error: it could not be made",
            *("done", "failed", "timeout", "skipped", "error"),
        ),
        _step("of the save before the last one", optional=True),
        _step("of the newest save when it was over", optional=True, name="saved_step"),
        _REASON,
        *_COST,
    ),
    "reader.failed": (
        "What the trainer writes is no longer read: steps and more may be missing from this log.",
        _text("path", "the file or folder, below the run's", optional=False),
        _text("error", "why"),
    ),
    "cleanup.failed": (
        "Something could not be undone at the end of the run; `chaos heal` tries it again.",
        _text("error", "what, and why"),
    ),
    "abort": ("The run is given up.", _REASON),
    "run.finished": (
        "The job is over. Only restarts on copies of what it saved follow.",
        _outcome("how it ended", "completed", "failed", "aborted", "interrupted"),
        _REASON,
        _flag("drills", "whether such restarts follow"),
    ),
}

PEOPLE = ("detected", "acknowledged", "mitigated", "note", "stop", "lift", "skip", "continue", "inject")
_GAME_DAY: _Events = {
    "gameday.started": (
        "A game day begins: several rehearsals on this job, by a schedule.",
        _name("name", "its name"),
        _text("title", "its title"),
        _size("entries", "entries of its schedule"),
    ),
    "gameday.steady": (
        "Whether the job was steady, as the schedule asks before it injects anything.",
        Field(FLAG, "ok", "whether it was"),
        _text("reason", "what was lacking, or what was seen"),
    ),
    "gameday.entry": (
        "An entry of the schedule begins or ends.",
        _size("entry", "its place in the schedule, from 0"),
        _name("kind", "what it is: a scenario, a pause, …"),
        Field(TEXT, "edge", "begin or end", values=("begin", "end")),
        _text("reason", "how it ended"),
    ),
    "gameday.person": (
        "Somebody pressed a button or left a note.",
        Field(TEXT, "action", "what they did", values=PEOPLE),
        Field(TEXT, "role", "whose token it was", values=("observer", "participant", "master")),
        _text("text", "what they wrote"),
        _name("who", "the name that they gave", optional=True),
    ),
    "gameday.alert": (
        "An alert of somebody's own alerting arrived.",
        _name("name", "the alert's name"),
        Field(TEXT, "status", "what it says", values=("firing", "resolved")),
        _text("summary", "what it says in words"),
        _name("fingerprint", "of its labels: alerts of one name are told apart by it", optional=True),
    ),
    "gameday.probe": (
        "A question of the user's own was asked.",
        _name("name", "the probe's name"),
        Field(TEXT, "moment", "when", values=("before", "during", "after")),
        Field(FLAG, "ok", "whether it held"),
        _text("detail", "what came back"),
        _name("rehearsal", "around which rehearsal", optional=True),
    ),
    "gameday.blocked": ("From now on nothing is injected, until a person lifts it.", _REASON),
    "gameday.lifted": ("Faults may be injected again.", _REASON),
    "gameday.finished": (
        "The schedule is over; the job may go on.",
        _outcome("how", "completed", "budget", "probe", "not_steady", "job_ended"),
        _REASON,
    ),
    "gameday.over": ("The day ends its job, whose last steps were done: its plan says `when_done: stop`.", _REASON),
}


EVENTS = tuple(
    Event(name, (role, "agent") if name in _LAUNCHERS_TOO else (role,), meaning, tuple(fields))
    for role, events in (("trainer", _TRAINER), ("agent", _AGENT), ("harness", _HARNESS | _GAME_DAY))
    for name, (meaning, *fields) in events.items()
)

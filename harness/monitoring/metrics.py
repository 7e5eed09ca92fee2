"""Declares all metrics that a job's monitoring serves: name, kind, labels and meaning. `make docs` writes a page of the
documentation from the declarations in this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.log import vocabulary

RANKS_SHOWN = 128  # each with series of its own; the others share the label `other`
OTHER = "other"
PHASES = (*("starting", "startup", "rendezvous", "restore", "restored", "training", "drain", "exiting"), OTHER)
ANOMALIES = (*vocabulary.ANOMALIES, OTHER)
ACCOUNTS = "an account of the ledger"
KIND = "the kind of fault, as in `chaos faults`"
RANK = f"0 to {RANKS_SHOWN - 1}; the higher ones together are `{OTHER}`"


@dataclass(frozen=True)
class Metric:
    """The declaration of one metric. `labels` pairs each label's name with its meaning. A metric's name ends with its
    unit, and the name of a counter ends with `_total`."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    labels: tuple[tuple[str, str], ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.labels)


def _gauge(name: str, meaning: str, **labels: str) -> Metric:
    return Metric(f"chaos_{name}", "gauge", meaning, tuple(labels.items()))


def _counter(name: str, meaning: str, **labels: str) -> Metric:
    return Metric(f"chaos_{name}_total", "counter", meaning, tuple(labels.items()))


def _histogram(name: str, meaning: str, buckets: tuple[float, ...], **labels: str) -> Metric:
    return Metric(f"chaos_{name}", "histogram", meaning, tuple(labels.items()), buckets)


_STEP_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_SAVE_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)

METRICS = (
    # The job
    _gauge(
        "job_info", "Always 1; names the job.", run_id="the run's id", scenario="its scenario", backend="its backend"
    ),
    _gauge("job_up", "1 while the job runs, 0 once it is over."),
    _gauge("job_start_time_seconds", "When the job began, since 1970."),
    _gauge("job_phase", "1 for the phase that the job is in, 0 for the others.", phase=", ".join(PHASES)),
    _gauge("job_step", "The last step that every rank has done."),
    _gauge("job_planned_steps", "How many steps the job is to do."),
    _gauge("job_last_progress_timestamp_seconds", "When the job last did a step that it had not done before."),
    _counter("steps", "Steps done, those included that were done again: of the rank that has done most."),
    _counter("samples", "Samples consumed in these steps, where the trainer tells them."),
    _counter("rank_samples", "Different samples that a rank computed with, where the trainer tells them.", rank=RANK),
    _histogram(
        "step_duration_seconds", "From the end of one step of a process to the end of its next.", _STEP_S, rank=RANK
    ),
    _counter("gradient_sync_seconds", "Time in gradient synchronisation, where the trainer measures it.", rank=RANK),
    _counter("data_wait_seconds", "Time that steps were blocked on data, where the trainer measures it.", rank=RANK),
    _counter("checkpoint_stall_seconds", "Time that steps were blocked on saving, where it is measured.", rank=RANK),
    _gauge("loss", "The newest loss, of the lowest rank that tells one."),
    _gauge("loss_improvement_ratio", "How far the mean loss of the last 50 steps is below that of the 100 before."),
    _gauge("gradient_norm", "The newest gradient norm, of the lowest rank that tells one."),
    _gauge("gradient_norm_recent_max", "The largest of the last 60 s, so that a spike between two scrapes shows."),
    _gauge("learning_rate", "The newest learning rate, of the lowest rank that tells one."),
    _counter("nonfinite", "Steps of the lowest rank whose value was not finite.", quantity="loss, gradient_norm"),
    _counter("anomalies", "Anomalies that the trainer reported.", kind=", ".join(ANOMALIES)),
    # Nodes
    _counter(
        "network_bytes", "Bytes on the node's network links.", node="its name", link="its name", way="received, sent"
    ),
    _gauge("node_memory_bytes", "Memory in use at the last look, by all that share its limit.", node="its name"),
    _gauge("node_memory_limit_bytes", "That limit: of the control group, or all memory.", node="its name"),
    _gauge("gpu_busy_ratio", "How busy the GPU was at the last look.", node="its name", gpu="its number"),
    _gauge("gpu_memory_bytes", "Memory of the GPU in use at the last look.", node="its name", gpu="its number"),
    _gauge("gpu_temperature_celsius", "Temperature of the GPU.", node="its name", gpu="its number"),
    _gauge("gpu_slowed", "1 while heat, power or hardware hold its clocks down.", node="its name", gpu="its number"),
    _gauge("gpu_lost", "1 once the GPU has fallen off the bus.", node="its name", gpu="its number"),
    _gauge("gpu_ecc_uncorrected", "Uncorrectable ECC errors so far.", node="its name", gpu="its number"),
    _gauge("gpu_nvlink_errors", "Errors of its NVLinks so far.", node="its name", gpu="its number"),
    _gauge("gpu_xids", "XID events since the job looked first.", node="its name", gpu="its number", xid="the newest"),
    # Checkpoints
    _counter("checkpoints", "Checkpoints; each counts once for all ranks.", result="success, failure"),
    _histogram(
        "checkpoint_duration_seconds", "From the begin of a checkpoint to its commit, as the trainer tells.", _SAVE_S
    ),
    _gauge(
        "checkpoint_last_committed_timestamp_seconds",
        "When the newest one was committed; its age is `time()` minus this.",
    ),
    _gauge("checkpoint_last_committed_step", "The step of the newest committed checkpoint."),
    _gauge(
        "checkpoint_interval_seconds",
        "Usual time between two commits: the median; of fewer than three, planned steps times the usual step.",
    ),
    # Trouble
    _counter("job_restarts", "How often the rank was started anew that was so most often."),
    _counter("worker_restarts", "Worker processes that came in place of an earlier one of their rank."),
    _counter("preemptions", "Preemptions that the harness made and that struck."),
    _counter("node_replacements", "Nodes that came in place of others."),
    _gauge("nodes", "Nodes that the job has now."),
    _gauge("gpus", "GPUs that the job has now."),
    _counter("faults_injected", "Faults that the harness injected.", fault=KIND),
    _gauge("faults_active", "Faults that were injected and are not healed yet.", fault=KIND),
    # GPU time
    _gauge("ledger_gpu_seconds", "GPU time so far, by the account that it is booked in.", account=ACCOUNTS),
    _gauge("ledger_allocated_gpu_seconds", "GPU time so far: the sum of all accounts."),
    _gauge("ledger_timestamp_seconds", "When the ledger was last worked out from the log."),
    _gauge("goodput_ratio", "Productive part of the allocated GPU time so far."),
    _gauge("waste_gpu_seconds", "GPU time so far that was not productive.", scope="all; faults: what they answer for"),
    _gauge("waste_budget_ratio", "The part of the GPU time that may be wasted, by the plan.", scope="all, faults"),
    _gauge("waste_cost_dollars", "What the waste of all kinds costs, where the scenario has a price."),
    # The harness itself
    _gauge("harness_info", "Always 1; names the harness.", version="its version"),
    _gauge("harness_last_tick_timestamp_seconds", "When the job's loop last came round; it does so all the time."),
    _counter("harness_ticks", "Rounds of the job's loop."),
    _gauge("harness_longest_tick_seconds", "The longest round of the last minute."),
    _counter("harness_events", "Events that were read from the job's log.", role="trainer, agent, harness, other"),
    _counter("harness_events_odd", "Events whose values make no sense; they change no other metric."),
    _counter("harness_left_behind", "Things that could not be undone at the end of a job."),
    _counter("exporter_events_dropped", "Events that came too fast to be counted: the other metrics lack them."),
    _gauge("exporter_ranks_folded", f"Ranks without series of their own: they share the rank `{OTHER}`."),
    _counter("exporter_series_refused", "Values left out: a metric has only so many series.", metric="the metric"),
    _counter("exporter_ledger_failures", "Times that the ledger could not be worked out."),
)
BY_NAME = {metric.name: metric for metric in METRICS}


def table() -> str:
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = "; ".join(f"`{name}`: {holds}" for name, holds in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |")
    return "\n".join(rows)

"""Trains a small GPT on many ranks, and survives their failures.

In each iteration, a rank takes its share of the global batch, which a thread has read in advance, and runs the forward
and backward pass. After the backward pass, the ranks sum their gradients, exchange and check losses, eviction notices
and digests of weights, update the weights, and log the step. If the state is no longer trustworthy (a setback), all
ranks go back to the newest checkpoint. Two commands start a job on one node:

    python -m reference_trainer.launch --nnodes 1 --nproc-per-node 2 -- --steps 200     (fast restarts)
    torchrun --nproc-per-node 2 -m reference_trainer.train --steps 200                  (works as well)
"""

from __future__ import annotations

from reference_trainer import preemption as preempt

if __name__ == "__main__":
    preempt.before_torch()

import contextlib
import faulthandler
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from harness.events import TELLS, Emitter, usage
from reference_trainer import flight_recorder, peers, shares
from reference_trainer import state as training_state
from reference_trainer.checkpoint import Checkpoints, copy_to_host
from reference_trainer.damage import Damage, Pause
from reference_trainer.data import BadShard, Loaded, Loader, Samples, load_corpus, share
from reference_trainer.divergence import Divergence, Spike
from reference_trainer.gpu_watch import GpuWatch
from reference_trainer.layers import LayerNorms
from reference_trainer.memory_watch import MemoryWatch
from reference_trainer.model import GPT, Shape, build_model, loss_per_sequence
from reference_trainer.options import EXIT_USAGE, BadInput, Options, parse
from reference_trainer.peers import NO_STATE, GaveUp, Peers, Standing
from reference_trainer.pieces import Pieces
from reference_trainer.precision import Precision
from reference_trainer.preemption import EXIT_DRAINED, Notice, Preemption
from reference_trainer.replicas import Replicas, Setback, digest
from reference_trainer.rhythm import Rhythm
from reference_trainer.trends import Trends
from reference_trainer.watchdog import StragglerReport, Watchdog, tell_hang

EXIT_COMPLETED = 0
EXIT_ERROR = 1  # a bug, or a machine that is not as it should be
EXIT_PEER_LOST = 74  # sysexits' EX_IOERR: a collective failed, most likely because another rank is gone
EXIT_SET_BACK = 71  # sysexits' EX_OSERR: the state is not to be trusted and no checkpoint is there; start again
EXIT_STOPPED = 78  # sysexits' EX_CONFIG: by policy; starting again would end the same way

ERROR_CHARS_MAX = 500
SETBACKS_MAX = 3  # in a row, without getting further
NOTICE, TIME_IS_UP, DIFFERENT_SAMPLES = 2, 4, 6  # places in the row that a rank tells of a step
STORE_PREFIX_ENV = "REFERENCE_TRAINER_STORE_PREFIX"


class WrongPlace(Exception):
    """Raised if this worker's rank or world size contradicts the rank or world size of another worker."""


class StoppedByPolicy(Exception):
    """Raised if the job must stop because continuing would not help: by `--nonfinite stop`, or after too many setbacks
    in a row."""


class FromScratch(Exception):
    """Raised if all ranks must go back after a setback, but no checkpoint exists: the process must start again."""


ENDS: dict[type[Exception], tuple[int, str]] = {
    StoppedByPolicy: (EXIT_STOPPED, "stopped"),
    BadShard: (EXIT_STOPPED, "stopped"),
    BadInput: (EXIT_USAGE, "usage"),
    FromScratch: (EXIT_SET_BACK, "set back"),
    WrongPlace: (EXIT_ERROR, "wrong place"),
}


def main(arguments: list[str] | None = None) -> int:
    preempt.after_torch()
    faulthandler.enable()  # a crash in native code says where
    options = parse(arguments)
    untold = {"samples"} if options.check_replicas_every else {"samples", "weights"}
    emit = Emitter.open("trainer", tells=[kind for kind in TELLS if kind not in untold], **place())
    emit("started")
    worker = Worker(options, emit, **place())  # as told now: a rehearsal may have begun to lie
    rank, said = worker.rank, dict[str, str]()
    try:
        code, reason = worker.run()
    except tuple(ENDS) as error:
        code, reason = ENDS[type(error)]
        if isinstance(error, WrongPlace):
            emit("anomaly", kind="topology", detail=str(error))
        print(f"rank {rank}: {error}", file=sys.stderr)
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]}
        lost_peer = isinstance(error, RuntimeError) and is_lost_peer(error)
        code, reason = (EXIT_PEER_LOST, "peer lost") if lost_peer else (EXIT_ERROR, "error")
        if isinstance(error, GaveUp):
            print(f"rank {rank}: no recovery among peers: {error}; all start again", file=sys.stderr)
        if lost_peer:
            usage.tell_peers(emit)
        if lost_peer and "timed out" in str(error).lower():
            flight_recorder.tell(emit)
        traceback.print_exc()
    emit("exiting", code=code, reason=reason, step=worker.step, **said)
    return code


def place() -> dict[str, int]:
    return {key.lower(): int(os.environ[key]) for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}


class Worker:
    def __init__(self, options: Options, emit: Emitter, rank: int, local_rank: int, world_size: int):
        self.place = rank, world_size
        self.options = options
        self.emit = emit
        self.rank, self.local_rank, self.world_size = rank, local_rank, world_size
        self.step = 0
        self.metrics: dict[str, float] = {}  # of the last step
        self.setbacks, self.furthest = 0, 0  # setbacks since the furthest step was passed
        self.peers: Peers | None = None  # with `--recovery peer`
        self.committed = Standing()
        self.under_way: UnderWay | None = None  # the step whose gradients are summed, but which is not committed
        self.taken: dict[str, Any] = {}  # what is told of the state that came from a peer
        self.rejoined = False  # this process group is not the first one of the job's start

    def run(self) -> tuple[int, str]:
        """Joins the other ranks, restores the newest checkpoint and trains. Returns exit code and reason."""
        options, emit = self.options, self.emit
        self.preemption = Preemption(emit)
        self.watchdog = Watchdog(emit, self.rank, options.hang_floor_s, options.hang_factor, options.startup_s)
        self.rhythm = Rhythm(options.checkpoint_every, options.checkpoint_every_s)
        self.trends = Trends(emit, self.rank, self.rhythm)
        self.memory = MemoryWatch(emit, self.rank)
        self.gpu = GpuWatch(emit, self.rank, self.local_rank) if options.gpu_health != "ignore" else None
        exclude = options.exclude_stragglers
        self.stragglers = StragglerReport(emit, self.rank, options.straggler_factor, excluded_after=exclude)
        if self.local_rank == 0:
            usage.watch(emit)
            if options.metadata != "off":
                self.preemption.poll(options.metadata, options.poll_s)
        with self.phase("startup", options.startup_s):
            self.build()
        with self.phase("rendezvous", options.startup_s):
            self.meet()
        self.tell_world()
        emit("coordinates", axes=[{"axis": "dp", "index": self.rank, "size": self.world_size}])
        with self.phase("restore"):
            if self.taken:
                emit("restored", **self.taken)
            else:
                self.restore()
        self.preemption.training_begins()
        while True:
            try:
                return self.train()
            except Setback as setback:
                self.go_back(setback)
            except RuntimeError as error:
                self.watchdog.peer_lost()
                if self.peers is None or not is_lost_peer(error):
                    raise
                self.recover(error)

    @contextlib.contextmanager
    def phase(self, name: str, limit_s: float | None = None) -> Iterator[None]:
        """Declares a phase in the log and to the watchdog. A phase without `limit_s` can take `--section-s` seconds."""
        with self.watchdog.section(name, limit_s or self.options.section_s), self.emit.phase(name):
            yield

    def build(self) -> None:
        options = self.options
        if options.global_batch < self.world_size:
            least = f"needs at least one for each of {self.world_size} ranks"
            raise BadInput(f"--global-batch {options.global_batch}: {least}")
        self.device = pick_device(options.device, self.local_rank)
        if options.recovery == "peer" and self.device.type != "cpu":
            raise BadInput("--recovery peer: works on the CPU only; write --device cpu, or --recovery restart")
        corpus = load_corpus(options.data)
        self.samples = Samples(corpus, options.context, options.global_batch, options.seed)
        self.model = untrained_model(options).to(self.device)
        self.optimizer = AdamW(self.model.parameters(), lr=options.lr, weight_decay=0.1, betas=(0.9, 0.95), fused=True)
        self.schedule = LambdaLR(self.optimizer, lambda step: learning_rate_factor(step, options))
        self.precision = Precision(options.precision, self.device)
        self.pieces = Pieces(self.emit, self.rank, options.accumulate)
        self.checkpoints = Checkpoints(options.checkpoint_dir, options.staging_dir, options.keep, self.emit)
        # What must not change between a checkpoint and its continuation, or the data order breaks.
        self.identity = {
            "seed": options.seed,
            "global_batch": options.global_batch,
            "data": corpus.digest,
            "model": repr(shape_of(options)),
        }
        self.damage = Damage.on_request(self.rank, self.emit, self.samples)
        self.divergence = Divergence(self.emit, self.rank, self.samples, options.divergence == "go-back")
        self.layer_norms = LayerNorms(self.model, self.emit, options.layer_norms_every, options.clip)
        self.replicas = Replicas(self.model, self.emit, self.rank, options.check_replicas_every)
        training_state.seed_everything(options.seed, self.rank, step=0)
        if self.rank == 0:
            print(f"data: {corpus.source}, {corpus.size} bytes, sha256 {corpus.digest}", flush=True)

    def meet(self) -> None:
        self.emit.failpoint("rendezvous")
        timeout = timedelta(seconds=self.options.collective_timeout_s)
        if self.options.recovery == "peer":
            self.peers = Peers(open_store(timeout), *self.place)
            self.regroup()
        else:
            join_process_group(self.device, *self.place, timeout, self.tell_absent)
            self.wrap()

    def wrap(self) -> None:
        if sync := getattr(self, "sync", None):
            sync.close()
        # DDP regroups its buckets after the first iteration of a process. With four or more ranks that changes the
        # order of summation, and a restarted run would differ from an undisturbed one in the last bits.
        # It does not regroup when told to look for unused parameters.
        self.parallel = DistributedDataParallel(
            self.model, find_unused_parameters=True, gradient_as_bucket_view=True, init_sync=self.peers is None
        )
        self.sync = GradientSync(self.parallel, self.emit, meanwhile=lambda: self.replicas.take(self.step))

    def tell_world(self) -> None:
        named = {"world": f"{os.environ[STORE_PREFIX_ENV]}/{self.peers.generation}"} if self.peers else {}
        self.emit("rendezvous", world_size=self.world_size, data_samples=self.samples.count, **named)

    # Recovery among peers

    def recover(self, error: RuntimeError) -> None:
        """Recovers from a lost rank: all ranks form a group with a new process, and continue after the last committed
        step."""
        assert self.peers is not None
        print(
            f"rank {self.rank}: lost a peer in step {self.step}: {error}"[:ERROR_CHARS_MAX], file=sys.stderr, flush=True
        )
        self.loader.close()
        self.peers.leave()
        self.peers.count(self.committed.step)
        with self.phase("rendezvous", self.options.peer_s + self.options.section_s):
            self.regroup()
        self.optimizer.zero_grad()
        self.under_way = None
        self.tell_world()
        self.step = self.committed.step
        self.watchdog.allow("the start", self.options.startup_s)

    def regroup(self) -> None:
        """Forms a process group of all ranks at the same step. Raises `GaveUp` if this takes too long."""
        assert self.peers is not None
        timeout = timedelta(seconds=self.options.collective_timeout_s)
        starts = self.peers.job_starts()
        deadline = time.monotonic() + (timeout.total_seconds() if starts else self.options.peer_s)
        while True:
            try:
                standings = self.peers.meet(self.committed, deadline, self.claim, self.is_told_to_leave)
                self.catch_up(standings)
                self.peers.join("gloo", timeout)
                self.share_state(standings)
                self.wrap()
                self.rejoined = self.peers.generation > 0
                return
            except GaveUp:
                if self.peers.absent and starts:
                    self.tell_absent(self.peers.absent)
                raise
            except RuntimeError as error:  # another one has gone meanwhile
                if not is_lost_peer(error):
                    raise
                self.peers.leave()

    def catch_up(self, standings: Sequence[Standing]) -> None:
        """Commits a step that other ranks have already committed, with the numbers that the ranks exchanged in this
        step."""
        best, _ = peers.furthest(standings)
        if self.committed.step in (NO_STATE, best.step):
            return
        if self.under_way is None or self.under_way.step != best.step:
            raise GaveUp(f"another rank has committed step {best.step}; this one is at {self.committed.step}")
        self.commit(self.under_way, best.rows)

    def share_state(self, standings: Sequence[Standing]) -> None:
        best, giver = peers.furthest(standings)
        takers = [rank for rank, each in enumerate(standings) if each.step == NO_STATE]
        parts = (self.model, self.optimizer, self.schedule, self.precision)
        if best.step == NO_STATE:
            return
        if self.rank == giver and takers:
            state = training_state.capture(*parts, best.step, self.identity, self.divergence.state(), alone=True)
            for rank in takers:
                peers.give(state | self.beside_state(), rank)
        if self.rank in takers:
            state = peers.take(giver)
            self.divergence.load(training_state.apply(state, *parts, self.identity))
            self.metrics, self.setbacks, self.furthest = state["metrics"], state["setbacks"], state["furthest"]
            self.committed, self.step = best, best.step
            mine = {"content": self.beside_state()["weights"], "saved": state["weights"]}
            self.taken = {"step": json.loads(state["progress"])["step"], "source": "peer", "fallback": [], **mine}
            if self.rank == 0:
                self.checkpoints.sweep()

    def beside_state(self) -> dict[str, Any]:
        kept = {"metrics": self.metrics, "setbacks": self.setbacks, "furthest": self.furthest}
        return kept | {"weights": f"{int(digest(self.model).item()):013x}"}

    def claim(self, store: dist.Store) -> None:
        claim_place(store, *self.place)

    def is_told_to_leave(self) -> bool:
        return self.preemption.notice is not Notice.NONE

    def tell_absent(self, absent: Sequence[int]) -> None:
        """Logs which ranks did not come to the rendezvous in time, on the lowest rank that came."""
        if self.rank == min(set(range(self.world_size)) - set(absent)):
            late = f"did not come to the rendezvous within {self.options.collective_timeout_s:g} s"
            detail = f"rank {', '.join(map(str, absent))} {late}"
            self.emit("anomaly", kind="hang", detail=detail)
            tell_hang(self.emit, absent, detail)

    def restore(self) -> int:
        """Restores the newest checkpoint that is valid on every rank. Returns the restored step, or 0 for a start from
        scratch."""
        self.emit.failpoint("restore")
        restored = self.checkpoints.restore()
        kept = {}
        if restored.state is not None:
            parts = (self.model, self.optimizer, self.schedule, self.precision)
            kept = training_state.apply(restored.state, *parts, self.identity)
        self.divergence.load(kept)
        if self.rank == 0:
            self.checkpoints.sweep()
        for passed_over in restored.fallback if self.rank == 0 else ():
            who, why = [{"file": passed_over["source"]}], passed_over["reason"]
            self.emit("diagnosis", kind="corruption", who=who, decision="roll-back", why=why)
        self.emit("restored", step=restored.step, source=restored.source, fallback=restored.fallback)
        self.step = restored.step
        self.committed, self.under_way = Standing(restored.step), None
        return restored.step

    def go_back(self, setback: Setback) -> None:
        """Brings all ranks back to the newest good checkpoint. Stops the job after too many setbacks in a row."""
        why = str(setback)
        print(f"rank {self.rank}: {why}; back to an earlier checkpoint", file=sys.stderr, flush=True)
        self.setbacks = 1 if self.step > self.furthest else self.setbacks + 1
        self.furthest = max(self.step, self.furthest)
        if self.setbacks > SETBACKS_MAX:
            raise StoppedByPolicy(f"{why}; this was setback {self.setbacks} without getting past step {self.furthest}")
        self.loader.close()
        self.optimizer.zero_grad()
        with self.watchdog.section("the save that is going on", self.options.startup_s):
            self.checkpoints.wait()
        with self.phase("restore"):
            if setback.before is not None and not self.checkpoints.forget_after(setback.before):
                raise StoppedByPolicy(f"{why}; no checkpoint of step {setback.before} or before is there to go back to")
            if not self.restore():
                raise FromScratch(f"{why}; there is no checkpoint to go back to")
        if isinstance(setback, Spike):
            self.divergence.gone_back(setback)
        self.watchdog.allow("the start", self.options.startup_s)

    def train(self) -> tuple[int, str]:
        """Runs the training loop until all steps are done, or until all ranks have agreed to leave."""
        options = self.options
        begin_ns, checkpoint_ns = time.monotonic_ns(), 0
        self.replicas.starts_at(self.step + 1)
        self.loader = self.load_from(self.step + 1)
        self.save_again()
        for step in range(self.step + 1, options.steps + 1):
            self.step = step
            if self.peers:  # a step that is done again draws the same numbers, and so does a new process
                training_state.seed_everything(options.seed, self.rank, step)
            paused_ns = 0
            if self.damage:
                self.damage.before_step(step, self.model, self.optimizer)
                paused_ns = self.pause(self.damage.pauses)
            self.emit.failpoint("next_batch")
            loaded = self.damage.of_batch(self.loader.take()) if self.damage else self.loader.take()
            inputs, targets = loaded.inputs.to(self.device), loaded.targets.to(self.device)
            data_ns = time.monotonic_ns() - begin_ns - checkpoint_ns - paused_ns

            loss_of_share, compute_s = self.forward_backward(inputs, targets)
            mine = shares.tally(loaded.indices)
            signs = self.preemption.notice, self.loader.waits_for_shard, self.rhythm.time_is_up()
            self.under_way = UnderWay(step, begin_ns, checkpoint_ns, data_ns, loaded)
            rows = exchange([loss_of_share, compute_s, *signs, self.replicas.mine, *mine])
            begin_ns = self.commit(self.under_way, rows)
            notices, time_is_up = [row[NOTICE] for row in rows], rows[0][TIME_IS_UP]

            if step == options.steps:
                break  # done: whoever is told to leave now has nothing left to lose
            if any(notices):
                return self.drain([Notice(int(notice)) for notice in notices])
            checkpoint_ns = 0
            if self.rhythm.due(step, bool(time_is_up)):
                self.rhythm.saved()
                self.save("periodic")
                checkpoint_ns = time.monotonic_ns() - begin_ns
        return self.finish()

    def commit(self, done: UnderWay, rows: list[list[float]]) -> int:
        """Updates the weights from this step's summed gradients, and logs the step. Returns the step's end time in ns.

        `rows` holds one row of numbers for each rank. All ranks have the same rows, so either all ranks update their
        weights, or no rank does.
        """
        step, batch = done.step, done.loaded.batch
        losses, compute_s_of_ranks, _, late_shards, _, digests, *tallies = zip(*rows, strict=True)
        shares.compare(step, batch, list(zip(*tallies, strict=True)), self.emit, self.rank)
        self.replicas.compare(step, digests)
        loss = sum(losses)
        lr = float(self.optimizer.param_groups[0]["lr"])
        grad_norm, seeks_scale = self.update(loss)
        self.metrics = {"loss": loss, "grad_norm": grad_norm, "lr": lr}
        self.committed, self.under_way = Standing(step, rows), None

        # An iteration ends where the next one begins, so that the log accounts for every nanosecond.
        end_ns = self.emit(
            "step",
            step=step,
            begin_ns=done.begin_ns,
            **self.metrics,
            digest=batch.digest,
            first=batch.first,
            count=len(batch.indices),
            rank_samples=int(rows[self.rank][DIFFERENT_SAMPLES]),
            data_ns=done.data_ns,
            checkpoint_ns=done.checkpoint_ns,
            sync_ns=self.sync.waited_ns,
            **({"applied": False} if seeks_scale else {}),
            **self.replicas.told(),
        )
        self.watchdog.step_done(step)
        if any(late_shards):  # a batch that comes late is no hang, and its rank's peers wait for it, too
            self.watchdog.allow("waiting for data", self.options.hang_floor_s + self.options.data_patience_s)
        self.stragglers.step_done(compute_s_of_ranks)
        saved = self.checkpoints.committed_step  # told on rank 0, which saves
        self.trends.step_done(step, loss, grad_norm, end_ns - done.begin_ns, done.data_ns, saved)
        if not seeks_scale:
            self.divergence.step_done(step, loss, grad_norm)
        self.look_around(step)
        if self.rank == 0 and step % self.options.log_every == 0:
            print(f"step {step}  loss {loss:.4f}  grad norm {grad_norm:.3f}  lr {lr:.2e}", flush=True)
        return end_ns

    def look_around(self, step: int) -> None:
        """Makes this node leave the job if the node is slow or its GPU is bad. Restarts this process before its memory
        is full."""
        if self.stragglers.excluded:
            self.preemption.give_up("straggler")
        if self.gpu and self.gpu.must_leave(step) and self.options.gpu_health == "leave":
            self.preemption.give_up("gpu")
        if self.options.memory_leak == "restart" and self.memory.runs_out(step):
            self.preemption.start_again()

    def save_again(self) -> None:
        due = self.rejoined and 0 < self.step < self.options.steps and self.rhythm.due(self.step, False)
        if due and not self.agreed(self.rank == 0 and self.checkpoints.has_begun(self.step)):
            self.save("periodic")

    def pause(self, ordered: Sequence[Pause]) -> int:
        """Waits for the duration of the pauses that a fault requests. Returns the total duration in ns. Each pause is
        declared as a phase, and ends on all ranks together."""
        begin_ns = time.monotonic_ns()
        for each in ordered:
            with self.phase(each.section):
                time.sleep(each.seconds)
                dist.barrier()
        return time.monotonic_ns() - begin_ns if ordered else 0

    def update(self, loss: float) -> tuple[float, bool]:
        """Updates the weights. Returns the gradient norm, and True if a too high loss scale prevented the update."""
        self.precision.unscale(self.optimizer)
        grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip).item()
        seeks_scale = math.isfinite(loss) and self.precision.seeks_scale(grad_norm)
        if self.rank == 0 and not seeks_scale:
            self.layer_norms.step_done(self.step, grad_norm, self.divergence.seems_abnormal(loss, grad_norm))
        if not seeks_scale and self.is_finite(loss, grad_norm):
            self.precision.step(self.optimizer)
        self.precision.step_done()
        self.optimizer.zero_grad()
        self.schedule.step()
        return grad_norm, seeks_scale

    def load_from(self, first: int) -> Loader:
        options, mine = self.options, share(self.options.global_batch, self.rank, self.world_size)
        return Loader(self.samples, mine, first, options.read_ahead, options.data_patience_s, self.tell_of_bad_shard)

    def tell_of_bad_shard(self, detail: str) -> None:
        self.emit("anomaly", kind="data", detail=detail)
        print(f"rank {self.rank}: {detail}", file=sys.stderr, flush=True)

    def forward_backward(self, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """Computes the gradient of the global mean loss, and leaves it in the model. Returns this rank's part of the
        loss, and the seconds for which this rank computed, without the time for which it waited for other ranks."""
        begin_ns = time.monotonic_ns()
        self.sync.not_before_ns = begin_ns + round(self.options.compute_s * 1e9) if self.device.type == "cpu" else 0
        while (loss_of_share := self.accumulate(inputs, targets)) is None:
            self.optimizer.zero_grad()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # blocks of the larger size serve nobody any more
        compute_s = (self.sync.ready_ns - begin_ns) / 1e9
        self.sync.waited_ns = time.monotonic_ns() - self.sync.ready_ns
        return loss_of_share.item(), compute_s

    def accumulate(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Returns the loss of this rank's share, with the gradient summed over all ranks.

        Returns `None` if a piece of the share did not fit into memory. In this case, all later pieces are smaller, and
        the caller must repeat the same samples. A rank that runs out of memory after DDP has begun to sum gradients
        cannot repeat the samples alone, and raises the error.
        """
        pieces = self.pieces.of(inputs, targets)
        loss_of_share = torch.zeros((), dtype=torch.float64, device=self.device)
        self.sync.begun = False
        try:
            for number, (piece, target) in enumerate(pieces, 1):
                with contextlib.nullcontext() if number == len(pieces) else self.parallel.no_sync():
                    with self.precision.autocast():
                        losses = loss_per_sequence(self.parallel(piece), target)
                    # Divided by the *global* batch and summed over ranks: right also where shares are unequal.
                    loss = losses.double().sum() / self.options.global_batch
                    self.precision.backward(loss)
                loss_of_share += loss.detach()
        except torch.OutOfMemoryError:
            if not self.pieces.did_not_fit(self.step, len(inputs), may_try_again=not self.sync.begun):
                raise
            return None
        return loss_of_share

    def is_finite(self, loss: float, grad_norm: float) -> bool:
        """Returns True if loss and gradient norm are finite. Raises `StoppedByPolicy` if they are not finite and the
        option `--nonfinite stop` is set."""
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return True
        kind, what = ("gradient", "gradient norm") if math.isfinite(loss) else ("nonfinite", "loss")
        value = grad_norm if math.isfinite(loss) else loss
        detail = f"{what} is {value} at step {self.step}"
        self.emit("anomaly", kind=kind, detail=detail)
        if self.options.nonfinite == "stop":
            raise StoppedByPolicy(detail)
        return False

    def save(self, kind: str) -> None:
        """Copies the training's state, and writes the copy in the background. Raises `Setback` if the ranks disagree on
        the weights."""
        if self.options.check_replicas_every:
            of_ranks = exchange([float(digest(self.model))])
            self.replicas.compare(self.step, [row[0] for row in of_ranks])
        with self.phase("checkpoint.snapshot"):
            self.emit.failpoint("checkpoint.snapshot")
            parts = (self.model, self.optimizer, self.schedule, self.precision)
            state = training_state.capture(*parts, self.step, self.identity, self.divergence.state())
            if self.rank == 0:
                state = copy_to_host(state)
        if self.rank == 0:
            self.checkpoints.save(kind, self.step, state, self.metrics)

    def save_and_wait(self, kind: str) -> bool:
        """Saves the current step, unless it is saved already, and waits until the save has ended. Returns True on every
        rank if the step is saved."""
        with self.watchdog.section(f"the {kind} save", self.options.startup_s):
            self.checkpoints.wait()
            if not self.agreed(self.checkpoints.committed_step == self.step):
                self.save(kind)
                self.checkpoints.wait()
            return self.agreed(self.checkpoints.committed_step == self.step)

    def agreed(self, answer: bool) -> bool:
        return exchange([float(answer)])[0][0] != 0

    def drain(self, notices: list[Notice]) -> tuple[int, str]:
        """Saves an emergency checkpoint at this step, the same step on all ranks. Returns exit code and reason."""
        with self.emit.phase("drain"):
            first_on_node = self.rank - self.local_rank
            on_node = notices[first_on_node : first_on_node + int(os.environ.get("LOCAL_WORLD_SIZE", "1"))]
            if Notice.EVICTED in notices and not self.preemption.notice:
                self.emit("notice", source="peer")
            self.save_and_wait("emergency")
        if Notice.EVICTED in on_node:
            self.preemption.leave()
        return EXIT_DRAINED, "drained" if Notice.EVICTED in notices else "regrouped"

    def finish(self) -> tuple[int, str]:
        """Saves the final checkpoint, without which no job counts as completed. Returns exit code and reason."""
        saved = self.save_and_wait("final") or self.save_and_wait("final")
        return (EXIT_COMPLETED, "completed") if saved else (EXIT_STOPPED, "the final checkpoint cannot be written")


@dataclass(frozen=True)
class UnderWay:
    """A step whose gradients are summed, but whose weights are not updated yet. Times are in ns."""

    step: int
    begin_ns: int
    checkpoint_ns: int
    data_ns: int
    loaded: Loaded


class GradientSync:
    """Sums the gradients of all ranks, bucket by bucket as they become ready, and measures the time. DDP itself divides
    by the number of ranks, which is wrong if their shares of the batch differ."""

    def __init__(self, parallel: DistributedDataParallel, emit: Emitter, meanwhile: Callable[[], None]):
        """The function `meanwhile` is called once in each step, while the last gradients are summed."""
        self.ready_ns = 0  # when this rank's own gradients were complete
        self.waited_ns = 0  # from then until everybody's were summed
        self.begun = False  # the forward pass is over after which DDP sums the gradients
        self.not_before_ns = 0  # the first gradients of a step are not summed before
        self._emit, self._meanwhile = emit, meanwhile
        parallel.register_comm_hook(None, lambda _, bucket: self._sum(bucket))
        begun = lambda *_: setattr(self, "begun", parallel.require_backward_grad_sync)  # noqa: E731
        self._hook = parallel.module.register_forward_hook(begun)

    def close(self) -> None:
        self._hook.remove()

    def _sum(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        if bucket.index() == 0:
            time.sleep(max(0, self.not_before_ns - time.monotonic_ns()) / 1e9)
            self._emit.failpoint("all_reduce")
        self.ready_ns = time.monotonic_ns()
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        if bucket.is_last():
            self._meanwhile()
        return future.then(lambda done: done.value()[0])


def exchange(row: list[float]) -> list[list[float]]:
    """Returns the rows of numbers of all ranks, in the order of ranks. The result is the same on all ranks, bit for
    bit."""
    rows: list[list[float]] = training_state.gather(torch.tensor(row, dtype=torch.float64)).tolist()
    return rows


def shape_of(options: Options) -> Shape:
    return Shape(options.layers, options.heads, options.width, options.context, options.dropout)


def untrained_model(options: Options) -> GPT:
    return build_model(shape_of(options), options.seed)


def learning_rate_factor(step: int, options: Options) -> float:
    if step < options.warmup:
        return (step + 1) / (options.warmup + 1)
    progress = (step - options.warmup) / max(1, options.steps - options.warmup)
    return 0.55 + 0.45 * math.cos(math.pi * min(1.0, progress))


def pick_device(name: str, local_rank: int) -> torch.device:
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0  # the count alone may be NVML's
    if name == "cpu" or (name == "auto" and gpus < ranks):
        torch.set_num_threads(1)  # ranks share the cores; threads of theirs would only fight over them
        return torch.device("cpu")
    if gpus < ranks:
        raise BadInput(f"--device cuda: torch sees {gpus or 'no'} GPU here; each of the node's {ranks} ranks needs one")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # a restarted run repeats each bit, as on a CPU
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def join_process_group(
    device: torch.device, rank: int, world_size: int, timeout: timedelta, tell_absent: Callable[[list[int]], None]
) -> None:
    """Joins the process group: gloo for tensors on the host, NCCL for tensors on a GPU.

    `reference_trainer.launch` gives each start of the job a new key prefix in the rendezvous store. Without the prefix,
    a restart would find the keys of earlier processes in the store.
    """
    flight_recorder.switch_on()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if STORE_PREFIX_ENV not in os.environ:
        dist.init_process_group(backend, timeout=timeout)
        return
    store = open_store(timeout)
    claim_place(store, rank, world_size)
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    except RuntimeError:
        if absent := [each for each in range(world_size) if not store.check([f"place {each}"])]:
            tell_absent(absent)
        raise


def open_store(timeout: timedelta) -> dist.Store:
    """Returns the rendezvous store for this start of the job. Raises `BadInput` if the process was not started by
    `reference_trainer.launch`."""
    if STORE_PREFIX_ENV not in os.environ:
        raise BadInput("--recovery peer: only python -m reference_trainer.launch puts new processes in a rank's place")
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.PrefixStore(
        os.environ[STORE_PREFIX_ENV], dist.TCPStore(address, port, is_master=False, timeout=timeout)
    )


def claim_place(store: dist.Store, rank: int, world_size: int) -> None:
    """Claims this rank in the store.

    Raises `WrongPlace` if another worker has claimed the rank, or was given another world size. If two workers had the
    same rank, another rank would stay empty and every collective would hang until its timeout.
    """
    me = "worker {LOCAL_RANK} of node {GROUP_RANK}".format_map(os.environ)
    holder = store.compare_set(f"place {rank}", "", me).decode()
    if holder != me:
        raise WrongPlace(f"two workers are told to be rank {rank}: {me} and {holder}")
    world = store.compare_set("world", "", f"{world_size} ({me})").decode()
    if int(world.split()[0]) != world_size:
        raise WrongPlace(f"{me} is told of {world_size} ranks, others of {world}")


def is_lost_peer(error: RuntimeError) -> bool:
    """Returns True if the error means that a collective failed. An error of gloo can be recognized only by its text."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # tearing a process group down can wait for ever for a peer that is gone

"""Starts the trainer on this node and keeps it going. Run this command once on every node.

With `--nnodes 2:2`, a job that lost a node waits --join-timeout-s seconds for a replacement, and then ends. With
`--nnodes 1:2`, the job continues with one node, and takes in a second node when a second node comes. A job on a single
node needs no store. Nodes beyond the maximum are spares: a spare waits until another node is lost, and takes that
node's place.

Exit codes: 0: all steps done · 75: this node was evicted · 78 or 2: a new start would not help · 1: anything else. An
example for two nodes:

  python -m reference_trainer.store --port 29400                     (once, on a host that stays)
  python -m reference_trainer.launch --nnodes 2:2 --nproc-per-node 1 --rdzv-endpoint HOST:29400 \\
    --rdzv-id JOB --local-addr ADDR -- --steps 200 --checkpoint-dir /shared/checkpoints
"""

from __future__ import annotations

from reference_trainer import preemption

if __name__ == "__main__":
    preemption.before_torch()

import argparse
import os
import pathlib
import sys
import tempfile
import warnings

import torch
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousError
from torch.optim import AdamW

from harness.events import Emitter
from reference_trainer import checkpoint, options, train
from reference_trainer.agent import HOPELESS, ForkingAgent
from reference_trainer.data import load_corpus
from reference_trainer.preemption import EXIT_DRAINED
from reference_trainer.rendezvous import Eviction, Rendezvous, connect
from reference_trainer.train import EXIT_COMPLETED, EXIT_ERROR


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m reference_trainer.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nnodes", type=_node_range, default=(1, 1), metavar="MIN:MAX")
    parser.add_argument("--nproc-per-node", type=int, default=1, metavar="N", help="workers on this node")
    parser.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="where the rendezvous store listens")
    parser.add_argument("--rdzv-id", default="reference", metavar="ID", help="the same on all nodes of a job")
    parser.add_argument("--local-addr", default="127.0.0.1", metavar="ADDR", help="this node, as others see it")
    parser.add_argument(
        "--node-index", type=int, default=0, metavar="N", help="from MAX on, this node is a spare: it joins a job last"
    )
    parser.add_argument("--max-restarts", type=int, default=1000)
    parser.add_argument("--drain-s", type=float, default=30, help="how long workers may take to save and leave")
    parser.add_argument("trainer", nargs="*", help="after --: options of reference_trainer.train")
    launch = parser.parse_args(arguments)
    if launch.nproc_per_node < 1:
        parser.error(f"--nproc-per-node {launch.nproc_per_node}: must be at least 1")
    if launch.rdzv_endpoint is None and launch.nnodes != (1, 1):
        parser.error("--rdzv-endpoint is needed for more than one node: start reference_trainer.store first")
    return launch


def main(arguments: list[str] | None = None) -> int:
    launch = parse(arguments)
    trainer_options = options.parse(launch.trainer)  # a mistake ends here, before anything was started
    emit = Emitter.open("agent")
    emit("agent.started")
    eviction = Eviction()
    eviction.install()
    code = EXIT_ERROR
    try:
        preload(trainer_options)
        store = connect(launch.rdzv_endpoint)
        rendezvous = Rendezvous(
            store,
            launch.rdzv_id,
            launch.nnodes,
            launch.local_addr,
            trainer_options.join_timeout_s,
            emit,
            eviction,
            spare=launch.node_index >= launch.nnodes[1],
        )
        agent = ForkingAgent(
            rendezvous,
            launch.nproc_per_node,
            launch.max_restarts,
            worker=train.main,
            arguments=launch.trainer,
            emit=emit,
            eviction=eviction,
            drain_s=launch.drain_s,
            exclude_failing=trainer_options.exclude_failing,
            by_peers=trainer_options.recovery == "peer",
        )
        code = run(agent, rendezvous, eviction)
    except (RendezvousError, OSError, RuntimeError) as error:
        print(f"launch: {type(error).__name__}: {error}", file=sys.stderr)
        if eviction.noticed:  # the store may be evicted with us, and nobody is left to say goodbye to
            code = EXIT_DRAINED
    emit("agent.exiting", code=code)
    return code


def run(agent: ForkingAgent, rendezvous: Rendezvous, eviction: Eviction) -> int:
    """Runs the agent until the job is over or this node must leave. Returns the exit code."""
    try:
        agent.refuse_excluded()
        if agent.run() is None:  # the job was over while this node waited for a place
            raise RendezvousClosedError
    except SignalException:
        done = agent.all_done()
        if eviction.slow:
            rendezvous.note_slow()
        elif not agent.excluded:  # told to leave: that is no failure of the node
            rendezvous.forgive(ends=True)
        rendezvous.leave()  # and keep it open: the others go on without us
        return EXIT_COMPLETED if done else EXIT_DRAINED
    except RendezvousClosedError:
        outcome = rendezvous.outcome()
        print(f"launch: this job is over already ({outcome or 'failed'})", file=sys.stderr)
        return EXIT_COMPLETED if outcome == "completed" else EXIT_ERROR
    codes = set(agent.exit_codes.values())
    rendezvous.tell_outcome("failed" if any(codes) else "completed")
    return max(codes & HOPELESS, default=EXIT_ERROR if any(codes) else EXIT_COMPLETED)


def preload(trainer_options: options.Options) -> None:
    """Loads everything that workers need and that loads slowly, once, before workers are forked.

    `preload` must run no backward pass, because this would start threads of torch. `preload` must not call CUDA,
    because the forked processes could then not use CUDA. While `preload` runs, torch reports that there is no GPU,
    because code that writes a checkpoint would otherwise call CUDA.
    """
    available, torch.cuda.is_available = torch.cuda.is_available, lambda: False
    torch.set_num_threads(1)
    load_corpus(trainer_options.data)
    model = train.untrained_model(trainer_options)
    AdamW(model.parameters())  # the first optimizer of a process imports half of torch
    with tempfile.TemporaryDirectory() as folder:  # and so does the first checkpoint
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        written = checkpoint.write(pathlib.Path(folder), 0, {"nothing": torch.zeros(1)}, Emitter(None))
        checkpoint.read(written)
    torch.cuda.is_available = available
    preemption.after_torch()


def _node_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        nodes = int(low), int(high or low)
    except ValueError:
        nodes = 0, 0
    if not 1 <= nodes[0] <= nodes[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of nodes: write MIN:MAX, like 1:2, or one number")
    return nodes


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # the store's client thread has nothing left to do

"""Observes torchrun's agent: when it meets other agents, which workers it starts, and how each worker ends.

Nothing is logged before an agent runs, because workers import the agent's module, too.
"""

from __future__ import annotations

import functools
from typing import Any

from harness.node.emitter import Emitter
from harness.node.observer.watch import Watch

AFTER = "torch.distributed.elastic.agent.server.local_elastic_agent"


def install(watch: Watch, module: Any) -> None:
    agent = module.LocalElasticAgent
    log = Log(watch)
    _around(watch, agent, "run", log.started, log.exiting)
    _around(watch, agent, "_rendezvous", log.meeting, log.met)
    _around(watch, agent, "_monitor_workers", log.look, log.look)
    _around(watch, agent, "_shutdown", log.look, log.look)


def _around(watch: Watch, owner: Any, name: str, before: Any, after: Any) -> None:
    method = getattr(owner, name)
    before, after = watch.guard("launcher")(before), watch.guard("launcher")(after)

    @functools.wraps(method)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        before(self)
        try:
            return method(self, *args, **kwargs)
        finally:
            after(self)

    setattr(owner, name, watched)


class Log:
    def __init__(self, watch: Watch):
        self._watch = watch
        self._emit = Emitter(None)
        self._ended: set[int] = set()
        self._round = 0

    def started(self, agent: Any) -> None:
        self._emit = Emitter.open("agent", tells=["exits", "phases"])
        self._emit("agent.started")

    def exiting(self, agent: Any) -> None:
        self.look(agent)
        self._emit("agent.exiting")

    def meeting(self, agent: Any) -> None:
        self._emit("agent.rendezvous", edge="begin")

    def met(self, agent: Any) -> None:
        group = agent._worker_group
        self._round += 1
        known = {"node_rank": group.group_rank, "nodes": group.group_world_size}
        known = {name: value for name, value in known.items() if value is not None}
        self._emit("agent.rendezvous", edge="end", round=self._round, **known)

    def look(self, agent: Any) -> None:
        ranks = {worker.local_rank: worker.global_rank for worker in agent._worker_group.workers}
        # By local rank: the worker's process id, and its exit code once it has ended.
        context = getattr(agent, "_pcontext", None)
        handlers = getattr(context, "subprocess_handlers", None)
        if handlers is not None:
            codes = {rank: (each.proc.pid, each.proc.poll()) for rank, each in handlers.items()}
        else:
            running = getattr(getattr(context, "_pc", None), "processes", ())
            codes = {rank: (each.pid, each.exitcode) for rank, each in enumerate(running) if each.pid is not None}
        for local_rank, (pid, code) in codes.items():
            if code is not None and pid not in self._ended:
                self._ended.add(pid)
                self._emit("worker.exit", local_rank=local_rank, rank=ranks.get(local_rank, -1), pid=pid, code=code)

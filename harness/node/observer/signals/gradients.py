"""Observes the norm of the gradient, as `clip_grad_norm_` returns it, if the training clips gradients."""

from __future__ import annotations

import functools
from typing import Any

from harness.node.observer.watch import Arriving, Watch

AFTER = "torch.nn.utils"


def install(watch: Watch, module: Any) -> None:
    torch = watch.torch
    clip = module.clip_grad_norm_

    @watch.guard("gradients")
    def note(norm: Any) -> None:
        """Records the gradient norm. Of a distributed tensor, only this rank's part is recorded, to avoid a
        collective."""
        norm = norm.to_local() if hasattr(norm, "to_local") else norm
        if not getattr(norm, "is_cuda", False):
            watch.note(grad_norm=float(norm))
        elif not torch.cuda.is_current_stream_capturing():
            watch.note(grad_norm=Arriving(torch, [norm.detach()], 0.0))

    @functools.wraps(clip)
    def watched(*args: Any, **kwargs: Any) -> Any:
        norm = clip(*args, **kwargs)
        if not torch.compiler.is_compiling():
            note(norm)
        return norm

    module.clip_grad_norm_ = watched
    module.clip_grad.clip_grad_norm_ = watched

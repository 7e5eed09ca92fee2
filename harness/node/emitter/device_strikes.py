"""Makes all later GPU calls of a rank's process fail, as they do after a CUDA error."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

CALL_FAILED = "device_call_failed"  # a failpoint: the first device call failed
ERRORS = {  # what CUDA says
    "illegal_access": "an illegal memory access was encountered",
    "ecc": "uncorrectable ECC error encountered",
    "nvlink": "uncorrectable NVLink error detected during the execution",
    "launch_failure": "unspecified launch failure",
}
_ADVICE = """
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
"""
# A kernel that writes where nothing is.
_PTX = b"""
.version 6.0
.target sm_60
.address_size 64
.visible .entry astray()
{
    .reg .b32 %value;
    .reg .b64 %place;
    mov.u32 %value, 1;
    mov.u64 %place, 16;
    st.global.u32 [%place], %value;
    ret;
}
"""

Append = Callable[[dict[str, Any]], int]


def break_device(kind: str, append: Append) -> None:
    """Makes all later GPU calls of this thread fail. The kind `illegal_access` causes a real illegal memory access on a
    GPU. Without a GPU, or for any other `kind`, PyTorch's operators raise the error that CUDA would report."""
    if kind == "illegal_access" and _on_gpu():
        _go_astray()
        try:
            sys.modules["torch"].cuda.synchronize()
        except RuntimeError as error:
            append({"event": "failpoint", "name": CALL_FAILED, "text": str(error).partition("\n")[0], "real": True})
        return
    torch = importlib.import_module("torch")
    kind_of_error = getattr(torch, "AcceleratorError", RuntimeError)
    told = list[bool]()

    class Broken(importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            text = f"CUDA error: {ERRORS[kind]}"
            if not told:
                told.append(True)
                append({"event": "failpoint", "name": CALL_FAILED, "text": text, "real": False})
            raise kind_of_error(text + _ADVICE)

    Broken().__enter__()  # for as long as the thread lives


def _go_astray() -> None:
    """Runs a faulty CUDA kernel, which causes a real illegal memory access on the current GPU."""
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _ok(cuda.cuModuleLoadData(ctypes.byref(module), _PTX))
    _ok(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"astray"))
    stream = ctypes.c_void_p(sys.modules["torch"].cuda.current_stream().cuda_stream)
    _ok(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, None, None))


def _ok(result: int) -> None:
    if result:
        raise RuntimeError(f"CUDA answers {result}")


def _on_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available() and torch.cuda.is_initialized())

"""Limits the GPU time of jobs. A job that reaches the limit is shut down cleanly, and its run cannot pass."""

NS_PER_HOUR = 3600 * 10**9


class GpuCap:
    """A limit in GPU-hours for all jobs together. Each rank counts as a GPU, even on a machine without GPUs."""

    def __init__(self, gpu_hours: float, of: str):
        self.gpu_hours, self.of = gpu_hours, of
        self.used_ns = 0

    def book(self, gpus: int, lasted_ns: int) -> None:
        self.used_ns += gpus * lasted_ns

    @property
    def reached(self) -> bool:
        return self.used_ns >= self.gpu_hours * NS_PER_HOUR

    @property
    def reason(self) -> str:
        return f"the cap of {self.gpu_hours:g} GPU-hours ({self.of}) was reached, so the job was stopped"

"""Sets rendezvous options of torch's elastic launcher, so that a job recovers as well as possible.

The harness does not modify torch's launcher: it only sets the launcher's options and environment variables.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from harness.trainers.shared.custom import Command

PORT = 29400
ENDPOINT = f"{{control}}:{PORT}"

ENVIRONMENT = {
    # Workers of each world make a store of their own. With the agents' store, torch's default, keys of the last world
    # are still there when the workers start again, and half of the restarts fail ("connectFullMesh"); and an agent
    # that survives keeps the address of a store whose node is gone, so that a replacement waits 60 s and dies.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}

OPTIONS: Mapping[str, str] = {
    "is_host": "0",  # no agent serves the store itself, whatever its address: it must outlive every node
    "join_timeout": "600",  # a node waits so long for the others: a replacement may take minutes
    "last_call_timeout": "1",  # with enough nodes there it waits so long for more (default: 30 s)
    "keep_alive_interval": "1",  # a lost node is given up after 3 s (default: 15 s)
    "keep_alive_max_attempt": "3",  # with 2, a job that had shrunk did not grow again
    "read_timeout": "60",  # for one answer of the store
}

MONITOR_INTERVAL_S = "0.1"  # how soon an agent notices that a worker has ended; 5 s by default before torch 2.3

LOGS = "{run_dir}/launcher"  # its own folders, which it would leave in /tmp

Option = Annotated[str, Field(pattern=r"^[a-z_]+$")]
RESTARTS_MAX = 1_000_000
USUAL_RESTARTS = 3
MAX_RESTARTS: Any = Field(
    USUAL_RESTARTS,
    ge=0,
    le=RESTARTS_MAX,
    description="How often the launcher starts workers again after one of them failed.",
)


def options(given: Mapping[str, object]) -> str:
    """Joins torch's rendezvous options into the value of `--rdzv-conf`. Options in `given` replace the defaults."""
    return ",".join(f"{name}={value}" for name, value in {**OPTIONS, **given}.items())


def store(python: str) -> Command:
    return (python, "-m", "harness.node.torch_store", "{control}", str(PORT))

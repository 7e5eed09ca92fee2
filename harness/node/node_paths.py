"""Names the files of a run as nodes see them, and the labels of a run's containers and pods."""

SCRATCH = "/scratch"  # the node's own disk: gone with the node
POD_RUN_DIR = "/chaos/run"
SHARED = "/chaos/shared"  # the volume of checkpoints, where there is one; a run has a folder of its own there
EVENTS, LOGS, ANSWERS = "events", "logs", "answers"  # in the run's folder: see `harness.backends.run_folder`
KEY_ENV, KEY_NAME = "CHAOS_KEY", "chaos"  # a secret that all nodes of a run share, and what an object store calls it
IMAGE_UID = 10001  # the image's unprivileged user

RUN_LABEL, NODE_LABEL, INDEX_LABEL = "chaos.run_id", "chaos.node", "chaos.index"


def events_of(node: str) -> str:
    return f"{EVENTS}/{node}"


def answers_of(node: str) -> str:
    """Returns the folder in which a node's trainers create files to tell the harness that they wait for a fault."""
    return f"{ANSWERS}/{node}"


def log_of(key: str) -> str:
    """Returns the path of a command's log. `key` is `<node>.<incarnation>`, or `control` for the control host."""
    return f"{LOGS}/{key}.log"


def environment(run_dir: str, node: str) -> dict[str, str]:
    return {"CHAOS_EVENTS": f"{run_dir}/{events_of(node)}", "CHAOS_ANSWERS": f"{run_dir}/{answers_of(node)}"}

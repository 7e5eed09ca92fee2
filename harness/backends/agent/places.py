"""Where things are inside a container or a pod, and the labels by which what we created is known."""

SCRATCH = "/scratch"  # the node's own disk: gone with the node
POD_RUN_DIR = "/chaos/run"
SHARED = "/chaos/shared"  # the volume of checkpoints, where there is one; a run has a folder of its own there
IMAGE_UID = 10001  # the image's unprivileged user

RUN_LABEL, NODE_LABEL = "chaos.run_id", "chaos.node"

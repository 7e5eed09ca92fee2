"""A secret in the environment is in no file that a run leaves, whatever the trainer prints."""

import json
import pathlib

from e2e.chaos_cli import ROOT, chaos

PLANTED = 'planted-"s3cret"-0451'
TALKATIVE = """
import os, sys
from harness.node.emitter import Emitter
print(dict(os.environ), os.environ["DEPLOY_TOKEN"], flush=True)
emit = Emitter.open("trainer", rank=0, local_rank=0, world_size=1)
emit("started"); emit("rendezvous", world_size=1); emit("restored", step=0, source="scratch", fallback=[])
for step in range(1, 9):
    emit("step", step=step, loss=1.0 / step)
emit("anomaly", kind="chatter", detail=os.environ["DEPLOY_TOKEN"])
sys.exit(os.environ["DEPLOY_TOKEN"] + " Error: and its last word is in the verdict")
"""


def test_no_file_of_a_run_holds_a_planted_secret(reports: pathlib.Path) -> None:
    command = ["{python}", "-c", TALKATIVE]
    env = {"DEPLOY_TOKEN": "${DEPLOY_TOKEN}", "PYTHONPATH": str(ROOT)}
    trainer = json.dumps({"command": command, "env": env})
    path = reports.parent / "talkative.yaml"
    path.write_text(f"version: 1\nname: talkative\ntitle: t\nworkload: {{nodes: 1, steps: 8, trainer: {trainer}}}\n")
    done = chaos(reports, "run", path, CHAOS_LOCAL_MODE="plain", DEPLOY_TOKEN=PLANTED)
    assert done.code == 1, done.out
    found = [file for file in reports.rglob("*") if file.is_file()]
    assert any(
        "Error: and its last word" in file.read_text(errors="replace") for file in found if file.suffix == ".log"
    )
    forms = (PLANTED.encode(), json.dumps(PLANTED)[1:-1].encode(), b"s3cret")
    assert [str(file) for file in found if any(form in file.read_bytes() for form in forms)] == []
    assert "s3cret" not in done.out

"""The programs of examples/reclaim: what they ask of a cloud's command line, which is stood in for here."""

import json
import os
import pathlib
import re
import subprocess

import pytest
import yaml

from harness.backends.kubernetes.settings import read_settings
from harness.plan.making import make_plan
from harness.spec.scenario import load_scenario

RECLAIM = pathlib.Path(__file__).resolve().parents[2] / "examples" / "reclaim"
PROGRAMS = sorted(path.name for path in RECLAIM.glob("*.sh"))
SPOT = "aws:///us-east-1b/i-0abc12"
VM = "gce://team/europe-west4-a/gke-spot-1"
AZURE = "azure:///subscriptions/s-1/resourceGroups/train/providers/Microsoft.Compute"


class Cloud:
    """Programs named `aws`, `gcloud` … that write down how they were called, and answer as told."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        for name in ("aws", "gcloud", "az", "kubectl"):
            path = folder / name
            path.write_text(
                f'#!/bin/bash\nprintf "%s\\0" {name} "$@" >>{folder}/calls; printf "\\n" >>{folder}/calls\n'
                f'while read -r words answer; do [[ "{name} $*" == *"${{words//+/ }}"* ]] && printf "$answer\\n" && exit\n'
                f"done <{folder}/answers; true\n"
            )
            path.chmod(0o700)
        (folder / "answers").touch()

    def answer(self, **answers: str) -> None:
        """By words of the call, `_` standing for a space or a hyphen between them."""
        lines = (f"{words.replace('__', '-').replace('_', '+')} {answer}\n" for words, answer in answers.items())
        (self.folder / "answers").write_text("".join(lines))

    def run(self, program: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{self.folder}:{os.environ['PATH']}", "CHAOS_PROVIDER_ID": "", **environment}
        return subprocess.run([RECLAIM / program, *words], env=env, capture_output=True, text=True)

    @property
    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [call.split("\0") for call in path.read_text().split("\0\n") if call] if path.exists() else []


@pytest.fixture
def cloud(tmp_path: pathlib.Path) -> Cloud:
    return Cloud(tmp_path)


def test_ec2_interrupts_the_one_instance(cloud: Cloud) -> None:
    cloud.answer(get__caller__identity="123456789012", create__experiment__template="EXT1")
    known = {"CHAOS_PROVIDER_ID": SPOT, "CHAOS_FIS_ROLE_ARN": "arn:aws:iam::1:role/fis"}
    done = cloud.run("aws.sh", "reclaim", "m1", "130", "run-7", **known)
    assert done.returncode == 0, done.stderr
    (create,) = (call for call in cloud.calls if "create-experiment-template" in call)
    template = json.loads(create[create.index("--cli-input-json") + 1])
    assert template["targets"]["machine"]["resourceArns"] == ["arn:aws:ec2:us-east-1:123456789012:instance/i-0abc12"]
    assert template["actions"]["reclaim"]["parameters"] == {"durationBeforeInterruption": "PT3M"}
    assert template["actions"]["reclaim"]["targets"] == {"SpotInstances": "machine"}
    assert template["tags"] == {"chaos-run": "run-7"}
    start = ["aws", "fis", "start-experiment", "--experiment-template-id", "EXT1"]
    assert any(call[: len(start)] == start for call in cloud.calls)


def test_ec2_stops_and_removes_what_carries_the_runs_tag(cloud: Cloud) -> None:
    cloud.answer(list__experiments="EXP1", list__experiment__templates="EXT1\\tEXT2")
    assert cloud.run("aws.sh", "heal", "run-7").returncode == 0
    asked = [" ".join(call) for call in cloud.calls]
    assert all("tags.\"chaos-run\"=='run-7'" in call for call in asked if "list" in call)
    removed = [f"aws fis delete-experiment-template --id EXT{number}" for number in (1, 2)]
    assert [call for call in asked if "list" not in call] == ["aws fis stop-experiment --id EXP1", *removed]


def test_compute_engine_preempts_and_starts_again_what_was_stopped(cloud: Cloud) -> None:
    cloud.answer(instances_list="gke-spot-1 europe-west4-a", instances_describe="TERMINATED")
    assert cloud.run("gcp.sh", "reclaim", "gke-spot-1", "30", "run-7", CHAOS_PROVIDER_ID=VM).returncode == 0
    assert [call[3] for call in cloud.calls] == ["add-labels", "simulate-maintenance-event"]
    assert all({"--project=team", "--zone=europe-west4-a"} <= set(call) for call in cloud.calls)
    assert cloud.run("gcp.sh", "heal", "run-7").returncode == 0
    assert [call[3] for call in cloud.calls[2:]] == ["list", "describe", "start", "remove-labels"]


def test_azure_evicts_a_machine_of_either_kind(cloud: Cloud) -> None:
    machine, member = f"{AZURE}/virtualMachines/spot-1", f"{AZURE}/virtualMachineScaleSets/gpus/virtualMachines/3"
    cloud.answer(resource_list=machine.removeprefix("azure://"))
    for identity in (machine, member):
        assert cloud.run("azure.sh", "reclaim", "m", "30", "run-7", CHAOS_PROVIDER_ID=identity).returncode == 0
    assert cloud.run("azure.sh", "restore", "spot-1", "run-7").returncode == 0
    asked = [" ".join(call[1:]) for call in cloud.calls]
    assert "vm simulate-eviction --resource-group train --name spot-1 --output none" in asked
    assert "vmss simulate-eviction --resource-group train --name gpus --instance-id 3 --output none" in asked
    assert [call.split(" --")[0] for call in asked[-2:]] == ["vm start", "tag update"], "found by our tag, then freed"


def test_karpenter_deletes_the_claim_of_that_machine(cloud: Cloud) -> None:
    cloud.answer(get_nodeclaims="chaos-nodes-x1")
    assert cloud.run("karpenter.sh", "reclaim", "ip-10-0-0-7", "30", "run-7").returncode == 0
    assert cloud.calls[-1] == ["kubectl", "delete", "nodeclaim", "chaos-nodes-x1", "--wait=false"]
    assert "'ip-10-0-0-7'" in cloud.calls[0][-1]
    cloud.answer()
    done = cloud.run("karpenter.sh", "reclaim", "strange", "30", "run-7")
    assert (done.returncode, done.stderr) == (1, "no NodeClaim of Karpenter has the machine strange\n")


@pytest.mark.parametrize(
    ("program", "seconds", "provider", "said"),
    [
        ("aws.sh", "30", SPOT, "EC2 gives 120 to 900 s"),
        ("aws.sh", "120", VM, "not an EC2 instance"),
        ("aws.sh", "120", SPOT, "CHAOS_FIS_ROLE_ARN is not set"),
        ("gcp.sh", "120", VM, "Compute Engine gives 30 s"),
        ("gcp.sh", "30", "gce://team/a/b;reboot", "not a VM of Compute Engine"),
        ("azure.sh", "5", AZURE, "Azure gives 30 s"),
        ("azure.sh", "30", AZURE, "not a VM of Azure"),
    ],
)
def test_what_the_cloud_cannot_do_is_refused_before_it_is_asked(
    cloud: Cloud, program: str, seconds: str, provider: str, said: str
) -> None:
    done = cloud.run(program, "reclaim", "m1", seconds, "run-7", CHAOS_PROVIDER_ID=provider)
    assert done.returncode == 1 and said in done.stderr
    assert cloud.calls == [], "nothing was asked"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_wrong_call_is_told_how(cloud: Cloud, program: str) -> None:
    for words in ([], ["destroy"]):
        done = cloud.run(program, *words)
        assert done.returncode == 1 and done.stderr.startswith(f"usage: {program} reclaim")


def test_the_pools_are_those_that_the_readme_names_and_the_scenario_can_be_planned() -> None:
    given = re.findall(r"export (CHAOS_KUBE_\w+)=(\S+)", (RECLAIM / "README.md").read_text())
    settings = read_settings(dict(given))
    nodes, control = yaml.safe_load_all((RECLAIM / "karpenter.yaml").read_text())
    for pool, selector in ((nodes, settings.selector), (control, settings.control_selector)):
        assert selector == pool["spec"]["template"]["metadata"]["labels"]
        (taint,) = pool["spec"]["template"]["spec"]["taints"]
        assert [(each.key, each.effect) for each in settings.tolerations] == [(taint["key"], taint["effect"])]
    assert (RECLAIM.parents[1] / settings.evict_by).is_file()
    plan = make_plan(load_scenario(RECLAIM / "engine-evict.yaml"), 1, "kubernetes", "r1")
    assert plan.faults[0].action.notice_s == 30

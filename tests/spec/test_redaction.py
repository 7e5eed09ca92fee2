"""Secrets are referred to and never written down, and what prints them all the same is made unreadable."""

import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ScenarioError, UsageError
from harness.spec import secrets
from harness.spec.scenario import load_scenario

SCENARIO = """\
version: 1
name: secretive
title: A trainer that needs a token
workload:
  trainer:
    command: ["train"]
    env: {{HF_TOKEN: "{value}"}}
faults: []
"""


def test_secrets_are_known_by_their_names() -> None:
    secret = ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "api_key", "TOKEN_2", "GCP_CREDENTIALS"]
    others = ["PATH", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "LR"]
    assert [name for name in secret + others if secrets.is_secret(name)] == secret


def test_a_scenario_holds_no_secret_and_the_refusal_does_not_tell_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "secretive.yaml"
    path.write_text(SCENARIO.format(value="hf_planted_in_yaml"))
    with pytest.raises(ScenarioError, match="HF_TOKEN") as caught:
        load_scenario(path)
    assert "${HF_TOKEN}" in str(caught.value) and "planted" not in str(caught.value)
    path.write_text(SCENARIO.format(value="${HF_TOKEN}"))
    assert load_scenario(path).name == "secretive"


def test_a_reference_is_resolved_at_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    assert secrets.resolve({"HF_TOKEN": "${HF_TOKEN}", "LR": "1"}) == {"HF_TOKEN": "hf_planted", "LR": "1"}
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UsageError, match="HF_TOKEN"):
        secrets.resolve({"HF_TOKEN": "${HF_TOKEN}"})


secret_texts = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="*"), min_size=secrets.LENGTH_MIN, max_size=30
)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(secret_texts, any_text, any_text, st.booleans())
def test_no_file_holds_a_secret_afterwards_and_json_stays_json(
    tmp_path_factory: pytest.TempPathFactory, secret: str, before: str, after: str, ascii_only: bool
) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / "plain.log").write_text(before + secret + after)
    line = json.dumps({"text": [before + secret + after]}, ensure_ascii=ascii_only, separators=(",", ":"))
    (folder / "events.jsonl").write_text(f"{line}\n{line}\n")
    sizes = [path.stat().st_size for path in sorted(folder.iterdir())]
    assert secrets.redact(folder, {secret}) == 2
    assert secret.encode() not in (folder / "plain.log").read_bytes()
    for record in (folder / "events.jsonl").read_text().splitlines():
        assert secret not in json.loads(record)["text"][0]
    if ascii_only:
        assert [path.stat().st_size for path in sorted(folder.iterdir())] == sizes

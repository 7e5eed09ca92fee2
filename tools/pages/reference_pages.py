"""The pages docs/faults.md, docs/bounds.md, docs/guarantees.md and docs/commands.md: what the code says of itself."""

import pathlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import margins
import typer
import yaml

from harness.cli import listing
from harness.cli.main import COMMANDS, make_app
from harness.faults.contract import fault_names, load_fault
from harness.judge import assumption, guarantee
from harness.plugins import Family

ROOT = pathlib.Path(__file__).resolve().parents[2]
MADE = "Made by `make docs` from what the code says of itself; a test fails when it is out of date."


def faults() -> str:
    """A section for each fault, with its parameters and the scenarios that have it."""
    used: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "scenarios").glob("*.yaml")):
        for kind in {fault["fault"] for fault in yaml.safe_load(path.read_text()).get("faults") or ()}:
            used[kind].append(path.stem)
    lines = [
        "# Faults",
        "",
        MADE,
        "[writing-a-scenario.md](writing-a-scenario.md) has what every fault takes: `id`, `when`,",
    ]
    lines += [
        "`target`. [backends.md](backends.md) says which backend can do which; `chaos faults` says it of this machine.",
        "",
    ]
    for name in fault_names():
        lines += [f"## {name}", "", _text(load_fault(name).__doc__), ""]
        properties = load_fault(name).model_json_schema()
        rows = [_parameter(key, each, properties) for key, each in properties.get("properties", {}).items()]
        if rows:
            lines += ["| parameter | allowed | default | what it is |", "|---|---|---|---|", *rows, ""]
        runbook = load_fault(name).runbook
        told = [f"Runbook: [{runbook}](runbooks/{runbook}.md)."] if runbook else []
        told += [f"Scenarios: {', '.join(used[name])}."] if used[name] else ["No shipped scenario has it."]
        lines += [" ".join(told), ""]
    return "\n".join(lines).rstrip() + "\n"


def _parameter(key: str, schema: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    default = schema.get("default")
    shown = "required" if key in whole.get("required", ()) else "–" if default is None else f"`{_value(default)}`"
    return f"| `{key}` | {_allowed(schema, whole)} | {shown} | {_text(schema.get('description'))} |"


def _allowed(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        found = whole["$defs"][schema["$ref"].rpartition("/")[2]]
        keys = ", ".join(f"`{key}`" for key in found.get("properties", {}))
        return f"a mapping with {keys}" if keys else _allowed(found, whole)
    if "anyOf" in schema or "oneOf" in schema:
        parts = [
            _allowed(each, whole) for each in schema.get("anyOf", schema.get("oneOf", ())) if each != {"type": "null"}
        ]
        return ", or ".join(dict.fromkeys(parts))
    if "const" in schema:
        return f"`{_value(schema['const'])}`"
    if "enum" in schema:
        return " · ".join(f"`{_value(each)}`" for each in schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return "a percentage, like `25%`"
    if kind == "array":
        return f"a list: {_allowed(schema.get('items', {}), whole)}"
    low, high = (
        schema.get("minimum", schema.get("exclusiveMinimum")),
        schema.get("maximum", schema.get("exclusiveMaximum")),
    )
    bounds = [f"above {low:g}"] if "exclusiveMinimum" in schema else [f"from {low:g}"] if low is not None else []
    bounds += [f"below {high:g}"] if "exclusiveMaximum" in schema else [f"to {high:g}"] if high is not None else []
    words = {"integer": "a whole number", "number": "a number", "boolean": "`true` · `false`", "string": "a text"}
    name = words.get(str(kind), "a mapping" if kind == "object" else "a value")
    if kind == "string" and "s" in str(schema.get("pattern", "")) and "ms" in str(schema.get("pattern", "")):
        name = "a duration, like `5s`"
    return " ".join([name, *bounds])


def guarantees() -> str:
    """A section for each family of guarantees, and one for what is assumed of the evidence."""
    lines = [
        "# What must be so in each run",
        "",
        MADE,
        "A **guarantee** is looked for in each run, whatever the scenario expects. `chaos guarantees` prints the same, and",
        "a report says of each whether it held, was broken, is open (the evidence does not tell), or was not judged.",
        "",
        "How a breach is known decides: what the harness saw, or what a process told against itself, fails the run. One",
        "word against another one, or something that nobody told, makes it inconclusive. A guarantee of the family `fault`",
        "that is broken makes the run invalid: it proves nothing.",
        "",
    ]
    known = guarantee.guarantees()
    for family in dict.fromkeys(map(guarantee.family, known)):
        lines += [f"## {family.capitalize()}", "", "| guarantee | what it says | looked for in |", "|---|---|---|"]
        for name in (each for each in known if guarantee.family(each) == family):
            lines.append(f"| `{name}` | {guarantee.FAMILY.sentence(name)} | {', '.join(known[name].holds_for)} |")
        lines += ["", *_details(guarantee.FAMILY, [each for each in known if guarantee.family(each) == family])]
    lines += [
        "## What is assumed of the evidence",
        "",
        "What breaks one of these makes inconclusive what rests on it, and says why in its own words.",
        "",
        "| assumption | what it says |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {assumption.FAMILY.sentence(name)} |" for name in assumption.assumptions()]
    lines += ["", *_details(assumption.FAMILY, assumption.assumptions()), *margins.section()]
    return "\n".join(lines) + "\n"


def _details(told: Family, names: Iterable[str]) -> list[str]:
    """Limits and exceptions, as each file has them below its sentence."""
    return [f"**`{name}`** {' '.join(found)}\n" for name in names if (found := told.details(name))]


def bounds() -> str:
    """A row for each key of `expect:`."""
    lines = [
        "# What a scenario can expect",
        "",
        MADE,
        "`chaos list --bounds` prints the same. `recovery_time.max` is written as `expect: {recovery_time: {max: 60s}}`.",
        "A score with a row of its own, whose default is `judged`, is judged in each run, unless `off` is written. Any other",
        "is judged where the scenario names it; what is not written there has its default. [metrics.md](metrics.md) says",
        "how each is measured.",
        "",
        "| key | example | default | what it bounds |",
        "|---|---|---|---|",
    ]
    for each in listing.bounds():
        default = f"`{each.default}`" if each.default else "–"
        lines.append(f"| `{each.key}` | `{each.example}` | {default} | {_text(each.about)} |")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """A section for each command, with its arguments and options."""
    app: Any = typer.main.get_command(make_app())
    lines = ["# Commands", "", f"{MADE} `chaos` is in `.venv/bin/` after the first `make`.", ""]
    for panel in COMMANDS:
        for name in COMMANDS[panel]:
            command = app.commands[name].load()
            lines += [f"## chaos {name}", "", *_command(command), ""]
            for below, each in getattr(command, "commands", {}).items():
                lines += [f"### chaos {name} {below}", "", *_command(each), ""]
    return "\n".join(lines).rstrip() + "\n"


def _command(command: Any) -> Iterator[str]:
    yield "\n\n".join(_paragraphs(command.help or ""))
    rows = []
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        is_argument = parameter.param_type_name == "argument"
        options = ", ".join((*parameter.opts, *parameter.secondary_opts))
        names = (parameter.metavar or parameter.name.upper()) if is_argument else options
        shown = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
        empty = shown in (None, "", (), False) or callable(shown)
        default = "required" if parameter.required else "" if empty else f"`{_value(shown)}`"
        rows.append(f"| `{names}` | {_text(getattr(parameter, 'help', ''))} | {default} |")
    if rows:
        yield ""
        yield from ("| argument or option | what it is | default |", "|---|---|---|", *rows)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        words = " ".join(paragraph.split())
        head, example, rest = words.partition("Example: ")
        yield f"{head}Example: `{rest}`" if example and not head else words


def _value(value: object) -> str:
    if isinstance(value, Mapping) and "text" in value:  # a duration or a size, as it was written
        return str(value["text"])
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(value: object) -> str:
    return " ".join(str(value or "").split()).replace("|", "\\|")

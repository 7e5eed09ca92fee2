"""Fills the placeholders `{name}` in a trainer's command, arguments and environment.

Some values are known before a run starts (`{steps}`), others only on each node (`{address}`). A shell's `${name}` is no
placeholder, and `{{name}}` stands for the text `{name}`. Braces around any other text stay as they are.
"""

import re
from collections.abc import Mapping, Sequence

from harness.backends.contract import PLACEHOLDER, PLACEHOLDERS

# What the plan knows. Some of it is in other words what each node knows.
OF_THE_PLAN = {
    "checkpoint_every": "checkpoint.every_steps",
    "checkpoints": "the folder for checkpoints, which all nodes share and a replaced node finds again",
    "data": "the folder with the shards of `data`",
    "keep": "checkpoint.keep",
    "min_nodes": "the least number of nodes",
    "node_rank": "as {index}",
    "nodes": "the number of nodes, without spares",
    "ranks": "the number of ranks of the whole job",
    "ranks_per_node": "ranks on each node",
    "run_id": "the run's id",
    "scenario_dir": "the folder of the scenario file",
    "seed": "the seed of the run",
    "steps": "the number of steps",
}
ALLOWED = tuple(sorted({*OF_THE_PLAN, *PLACEHOLDERS}))
ON_NODES_ONLY = ("index", "incarnation", "address")  # without a meaning for the control command, or with another one

_ANY = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")


def names_in(word: str) -> list[str]:
    return [match[2] for match in _ANY.finditer(word) if match[2] is not None]


def unknown_in(word: str) -> str | None:
    """Returns why a placeholder in an argument cannot be filled, or `None` if all placeholders can be filled."""
    for name in names_in(word):
        if name not in ALLOWED:
            allowed = ", ".join(f"{{{each}}}" for each in ALLOWED)
            return f"unknown placeholder {{{name}}}; write {{{{{name}}}}} for the text itself, or one of: {allowed}"
    return None


def fill(words: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    """Fills placeholders in the arguments `words`. Placeholders that are escaped or have no value remain."""

    def value(match: re.Match[str]) -> str:
        return str(values[match[2]]) if match[2] is not None and match[2] in values else match[0]

    return tuple(_ANY.sub(value, word) for word in words)


def fill_variables(
    given: Mapping[str, str], values: Mapping[str, object]
) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """Splits environment variables by where the values of the placeholders in them are known.

    Returns the variables whose values are known now, a command `env NAME=…` that sets all other variables on a node,
    and a command `env NAME=…` that sets, outside of the nodes, the variables whose values are known there.
    """
    env = {name: fill([value], values)[0] for name, value in given.items()}
    late = {name: value for name, value in env.items() if for_nodes(value)}
    fitting = {name: value for name, value in late.items() if set(ON_NODES_ONLY).isdisjoint(names_in(value))}
    fixed = {name: plain(value) for name, value in env.items() if name not in late}
    return fixed, _assigned(late), _assigned(fitting)


def _assigned(variables: Mapping[str, str]) -> tuple[str, ...]:
    return ("env", *(f"{name}={value}" for name, value in variables.items())) if variables else ()


def escaped(text: str) -> str:
    """Escapes a text, such as the folder name `{index}`, so that braces in it are not taken for placeholders."""
    return _ANY.sub(lambda match: match[0] if match[2] is None else f"{{{match[0]}}}", text)


def for_nodes(word: str) -> bool:
    return any(match[2] is not None for match in PLACEHOLDER.finditer(word))


def plain(word: str) -> str:
    return _ANY.sub(lambda match: match[0] if match[1] is None else f"{{{match[1]}}}", word)

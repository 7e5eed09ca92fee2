"""Finds the external programs that code calls, without running it: in Python by its syntax tree, in shell by its words.

What is put together at run time stays unseen, except for names given a literal value in the same file.
"""

import ast
import functools
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
STARTERS = {"run", "Popen", "call", "check_call", "check_output", "which", "execv", "execvp", "execvpe", "start"}
SHELLS = ("sh", "bash")
# What runs another program: the first word after its options is one, too.
_WRAPPERS = "env exec nice setsid timeout flock xargs nsenter unshare setpriv tini client command wait_until daemon"
_KEYWORDS = "! { do elif else if then time until while"
_SHELL_WORDS = (
    "alias break case cd continue declare done echo esac eval exit export fi for function getopts hash in kill let"
    " local mapfile popd printf pushd pwd read readonly return select set shift source test trap true false type ulimit umask"
    " unset wait [ [[ ]] ] } : . exec command builtin"
)
WRAPPERS, KEYWORDS = set(_WRAPPERS.split()), set(_KEYWORDS.split())
SHELL_WORDS = set(_SHELL_WORDS.split()) | KEYWORDS
NAME = re.compile(r"[a-z][a-z0-9_.+-]*\Z")
TOKEN = re.compile(
    r"(?P<space>[ \t]+|\\\n)|(?P<comment>(?<![\w$\"'{])\#[^\n]*)|(?P<text>'[^']*'|\$?\(\(.*?\)\)|\$\{[^}]*\}|\\.)"
    r"|(?P<array>\w+=\((?!\())|(?P<end>\$\(|<\(|>\(|[;|&\n()`])|(?P<quote>\")|(?P<char>.)",
    re.DOTALL,
)
SUBSTITUTIONS = ("$(", "<(", ">(")
QUOTED = re.compile(r"(?P<end>\$\((?!\())|(?P<quote>\")|(?P<text>\$\(\(.*?\)\)|\\.|.)", re.DOTALL)


@dataclass(frozen=True, order=True)
class Call:
    program: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} calls {self.program}"


def calls_in_python(text: str, file: str = "") -> set[Call]:
    """Programs at the head of a command: a literal list that is started, or a name that is looked up."""
    tree = ast.parse(text)
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                values.setdefault(getattr(target, "id", ""), []).append(node.value)
        if isinstance(node, ast.For | ast.comprehension):
            values.setdefault(getattr(node.target, "id", ""), []).extend(_items(node.iter, values))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _starts(node.func) and node.args:
            found |= _heads(node.args[0], values, file)
        if isinstance(node, ast.List | ast.Tuple):
            found |= {Call(name, file, line) for name, line in _shell_inside(node)}
    return {call for call in found if NAME.match(call.program)}


def _starts(function: ast.expr) -> bool:
    """`subprocess.run`, `shutil.which`, `os.execvp` and their kind."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.value.id in ("subprocess", "shutil", "os") and function.attr in STARTERS
    return False


def _items(sequence: ast.expr, values: Mapping[str, list[ast.expr]]) -> list[ast.expr]:
    """What a loop goes through, where that is a literal."""
    if isinstance(sequence, ast.Name):
        return [item for value in values.get(sequence.id, []) for item in _items(value, {})]
    return sequence.elts if isinstance(sequence, ast.List | ast.Tuple) else []


def _heads(command: ast.expr, values: Mapping[str, list[ast.expr]], file: str, depth: int = 0) -> set[Call]:
    parts: list[ast.expr] = []
    if isinstance(command, ast.Constant) and isinstance(command.value, str) and command.value:
        return {Call(command.value.split()[0].rpartition("/")[2], file, command.lineno)}
    if isinstance(command, ast.Name):
        parts = values.get(command.id, [])
    elif isinstance(command, ast.IfExp):
        parts = [command.body, command.orelse]
    elif isinstance(command, ast.Starred):
        parts = [command.value]
    elif isinstance(command, ast.Call) and isinstance(command.func, ast.Attribute) and command.func.attr == "split":
        parts = [command.func.value]
    elif isinstance(command, ast.List | ast.Tuple) and command.elts:
        # What comes after a wrapper's own words is a command again.
        parts = [command.elts[0], *(item for item in command.elts[1:] if isinstance(item, ast.Starred))]
        if not any(head.program in WRAPPERS for head in _heads(parts[0], values, file, depth + 1)):
            parts = parts[:1]
    return {head for part in parts if depth < 8 for head in _heads(part, values, file, depth + 1)}


def _shell_inside(command: ast.List | ast.Tuple) -> Iterator[tuple[str, int]]:
    """The head of every list that hands a text to a shell, and what the text calls."""
    words = [item.value if isinstance(item, ast.Constant) else None for item in command.elts]
    for at, word in enumerate(words[:-2]):
        if word in SHELLS and words[at + 1] in ("-c", "-ec"):
            yield from ((str(head), command.lineno) for head in words[:1] if head in WRAPPERS)
            yield str(word), command.lineno
            text = words[at + 2]
            for call in calls_in_shell(text) if isinstance(text, str) else ():
                yield call.program, command.lineno


def functions(text: str) -> set[str]:
    """The functions that a shell script defines."""
    return set(re.findall(r"^\s*([a-z_]+)\(\)", text, re.MULTILINE))


def calls_in_shell(text: str, file: str = "", shared: Collection[str] = ()) -> set[Call]:
    """Words where a command is expected, less the shell's own, the script's functions and those it shares."""
    own = functions(text) | set(shared) | SHELL_WORDS
    text = re.sub(r"(\bin\b|;;|^)(\s*)[\w-]+(?: \| [\w-]+)*\)", r"\1 ;\2", text, flags=re.MULTILINE)  # labels of a case
    text = re.sub(
        r"<<-?'?(\w+)'?.*?^\1$", lambda match: "\n" * match[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL
    )
    return {Call(word, file, line) for word, line in _heads_of_shell(text) if NAME.match(word) and word not in own}


def _heads_of_shell(text: str) -> Iterator[tuple[str, int]]:
    """(first word of a command, its line). What a wrapper runs is a command, too."""
    expected, wrapped = True, False
    around: list[tuple[bool, bool]] = []
    for kind, word, line in _shell_tokens(text):
        if kind == "open":
            around.append((expected, wrapped))
        if kind in ("open", "end"):
            expected, wrapped = True, False
        elif kind == "close":
            expected, wrapped = around.pop()
        elif expected and not re.match(r"\w+\+?=", word):
            if wrapped and (word.startswith("-") or not NAME.match(word)):
                continue  # an option of the wrapper, or its value
            yield word, line
            wrapped = word in WRAPPERS
            expected = wrapped or word in KEYWORDS


def _shell_tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """("word", "end", "open" or "close", text, line).

    A substitution in double quotes is a command; other text there is a part of a word.
    """
    at, line, word, quoted = 0, 1, "", False
    brackets: list[tuple[str, bool]] = []  # each open one, and whether it stands in double quotes
    while match := (QUOTED if quoted else TOKEN).match(text, at):
        kind, found, at = match.lastgroup, match[0], match.end()
        if kind == "quote":
            quoted, word = not quoted, word + "\0"
        elif kind in ("text", "char"):
            word += "\0" if kind == "text" else found
        else:
            listed = any(bracket == "array" for bracket, _ in brackets[-1:])
            if word and not listed and (found != ")" or brackets):  # else an item of an array, or the label of a case
                yield "word", word, line
            word = ""
            if found == ")" and brackets:
                bracket, quoted = brackets.pop()
                word = "\0" if bracket in SUBSTITUTIONS else ""
                yield ("close" if bracket in SUBSTITUTIONS else "end"), found, line
            elif kind in ("end", "array"):
                if kind == "end":
                    yield ("open" if found in SUBSTITUTIONS else "end"), found, line
                if found.endswith("("):
                    brackets.append(("array" if kind == "array" else found, quoted))
                    quoted = False
        line += found.count("\n")
    if word:
        yield "word", word, line


@functools.cache
def calls_of_project() -> set[Call]:
    found: set[Call] = set()
    for folder in ("harness", "reference_trainer", "engines", "tests", "tools", "benches"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found |= calls_in_python(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    shared = functions((ROOT / "engines" / "common.sh").read_text(encoding="utf-8"))
    for path in [*sorted((ROOT / "engines").glob("*.sh")), *sorted((ROOT / ".ci").iterdir())]:
        found |= calls_in_shell(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)), shared)
    return found

"""Calls `chaos` in the process of the test."""

from typer.testing import CliRunner, Result

from harness.cli.main import make_app
from harness.errors import UsageError


def chaos(*words: object, **env: str) -> Result:
    return CliRunner().invoke(make_app(), [*map(str, words)], env={"COLUMNS": "200", **env})


def ended(*words: object) -> Result:
    """Like `chaos`, where the command must end without an error."""
    result = chaos(*words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(*words: object, **env: str) -> str:
    """Returns the words with which the command refuses what it was asked."""
    result = chaos(*words, **env)
    assert isinstance(result.exception, UsageError), (result.output, result.exception)
    return str(result.exception)

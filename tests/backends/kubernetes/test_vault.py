"""Checkpoints that several nodes keep the same, through a vault; each node is a folder here."""

import os
import pathlib
import tarfile
import urllib.error
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest
from waiting import until

from harness.node.checkpoint_copies import Copies, Vault, _unpack


@pytest.fixture
def vault(tmp_path: pathlib.Path) -> Iterator[Vault]:
    opened = Vault(tmp_path / "vault", "127.0.0.1", "token")
    yield opened
    opened.close()


@pytest.fixture
def node(vault: Vault, tmp_path: pathlib.Path) -> Iterator[Callable[[str], Copies]]:
    made = []

    def make(name: str) -> Copies:
        made.append(Copies(tmp_path / name, vault.url, "token"))
        return made[-1]

    yield make
    for each in made:
        each.close()


def save(root: pathlib.Path, name: str, content: str) -> None:
    """As a trainer does: whole, by a rename."""
    (root / ".tmp" / "deep").mkdir(parents=True)
    (root / ".tmp" / "deep" / "data").write_text(content)
    (root / ".tmp").rename(root / name)


def test_what_one_saves_makes_again_and_deletes_the_others_do(
    node: Callable[[str], Copies], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, version = node("one"), node("other"), -1
    mine, theirs = (tmp_path / name / "step-1" for name in ("one", "other"))
    for content in ("first", "made again"):
        if mine.exists():
            mine.rename(mine.with_name(".tmp-replaced"))  # work in progress stays where it is
        save(tmp_path / "one", "step-1", content)
        one.push()
        version = other.pull(version)
        assert (theirs / "deep" / "data").read_text() == content
        other.push()
        assert (mine / "deep" / "data").read_text() == content
    assert not [*theirs.parent.glob(".*")], "nothing half is left"

    theirs.rename(tmp_path / "kept")
    other.push()
    one.pull(version)
    assert not mine.exists()
    save(tmp_path / "one", "step-1", "once more")
    one.push()
    version = other.pull(version)
    mine.rename(mine.with_name(".gone"))
    one.push()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", Mock(side_effect=OSError(16, "Device or resource busy")))
        with pytest.raises(OSError, match="busy"):
            other.pull(version)
    other.push()
    one.pull(-1)
    assert not mine.exists() and not theirs.exists(), "half of a deleted one is no new one"
    other.pull(version)  # it tries again, and nothing is left
    assert list(theirs.parent.iterdir()) == []


def test_old_news_deletes_nothing_new(node: Callable[[str], Copies], tmp_path: pathlib.Path) -> None:
    """The vault was asked before, and answers after, something was sent."""
    one = node("one")
    news = one._ask("GET", "/entries?after=-1")
    save(tmp_path / "one", "step-1", "first")
    one.push()
    one._ask = lambda *_: news  # type: ignore[method-assign]
    one.pull(-1)
    assert (tmp_path / "one" / "step-1" / "deep" / "data").read_text() == "first"


def test_a_node_that_joins_is_up_to_date_once_it_has_started(
    node: Callable[[str], Copies], tmp_path: pathlib.Path
) -> None:
    one = node("one")
    one.start()
    save(tmp_path / "one", "step-1", "first")
    until(lambda: (tmp_path / "vault" / "step-1.tar").exists(), "sent by itself")
    late = node("late")
    late.start()
    assert (tmp_path / "late" / "step-1" / "deep" / "data").read_text() == "first"


def test_who_does_not_know_the_token_gets_nothing_and_an_entry_has_a_plain_name(
    node: Callable[[str], Copies], vault: Vault, tmp_path: pathlib.Path
) -> None:
    stranger = Copies(tmp_path / "stranger", vault.url, "guess")
    for asked in (("GET", "/entries/step-1"), ("GET", "/entries?after=-1"), ("PUT", "/entries/step-1", b"x", 1)):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            stranger._ask(*asked)
    for name in ("..", "../x", ".hidden", "a/b", ""):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            node("one")._ask("PUT", f"/entries/{name}", b"x", 1)


def test_an_archive_writes_nowhere_else(tmp_path: pathlib.Path) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(tarfile.TarError, match="no place"):
        _unpack(tmp_path / "bad.tar", tmp_path / "in")

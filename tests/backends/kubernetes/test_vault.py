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


@pytest.fixture
def pair(node: Callable[[str], Copies], tmp_path: pathlib.Path) -> tuple[Copies, Copies]:
    """One node that has sent its first checkpoint, and another."""
    one, other = node("one"), node("other")
    save(tmp_path / "one", "step-1", "first")
    one.push()
    return one, other


def save(root: pathlib.Path, name: str, content: str) -> None:
    """As a trainer does: whole, by a rename."""
    (root / ".tmp" / "deep").mkdir(parents=True)
    (root / ".tmp" / "deep" / "data").write_text(content)
    (root / ".tmp").rename(root / name)


def content(root: pathlib.Path, name: str) -> str:
    return (root / name / "deep" / "data").read_text()


def test_half_of_a_deleted_checkpoint_is_no_new_one(
    pair: tuple[Copies, Copies], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    version = other.pull(-1)
    (tmp_path / "one" / "step-1").rename(tmp_path / "one" / ".gone")
    one.push()

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", Mock(side_effect=OSError(16, "Device or resource busy")))
        with pytest.raises(OSError, match="busy"):
            other.pull(version)
    other.push()
    one.pull(-1)
    assert not (tmp_path / "one" / "step-1").exists() and not (tmp_path / "other" / "step-1").exists()
    other.pull(version)  # it tries again, and nothing is left
    assert list((tmp_path / "other").iterdir()) == []


def test_what_one_saves_the_others_have(pair: tuple[Copies, Copies], tmp_path: pathlib.Path) -> None:
    _, other = pair
    other.pull(-1)
    assert content(tmp_path / "other", "step-1") == "first"
    assert not [*(tmp_path / "other").glob(".*")], "nothing half is left"


def test_what_one_deletes_is_gone_everywhere(pair: tuple[Copies, Copies], tmp_path: pathlib.Path) -> None:
    one, other = pair
    version = other.pull(-1)
    (tmp_path / "other" / "step-1").rename(tmp_path / "kept")
    other.push()
    one.pull(version)
    assert not (tmp_path / "one" / "step-1").exists()


def test_one_that_was_made_again_replaces_the_old_copy(pair: tuple[Copies, Copies], tmp_path: pathlib.Path) -> None:
    one, other = pair
    version = other.pull(-1)
    (tmp_path / "one" / "step-1").rename(tmp_path / "one" / ".tmp-replaced")
    save(tmp_path / "one", "step-1", "whole")
    one.push()
    other.pull(version)
    assert content(tmp_path / "other", "step-1") == "whole"
    other.push()
    assert content(tmp_path / "one", "step-1") == "whole"


def test_old_news_deletes_nothing_new(node: Callable[[str], Copies], tmp_path: pathlib.Path) -> None:
    """The vault was asked before, and answers after, something was sent."""
    one = node("one")
    news = one._ask("GET", "/entries?after=-1")
    save(tmp_path / "one", "step-1", "first")
    one.push()
    one._ask = lambda *_: news  # type: ignore[method-assign]
    one.pull(-1)
    assert content(tmp_path / "one", "step-1") == "first"


def test_work_in_progress_stays_where_it_is(node: Callable[[str], Copies], tmp_path: pathlib.Path) -> None:
    one, other = node("one"), node("other")
    (tmp_path / "one" / ".tmp-step-2").mkdir()
    one.push()
    other.pull(-1)
    assert not [*(tmp_path / "other").iterdir()]


def test_a_node_that_joins_is_up_to_date_once_it_has_started(
    node: Callable[[str], Copies], tmp_path: pathlib.Path
) -> None:
    one = node("one")
    one.start()
    save(tmp_path / "one", "step-1", "first")
    until(lambda: (tmp_path / "vault" / "step-1.tar").exists(), "sent by itself")
    late = node("late")
    late.start()
    assert content(tmp_path / "late", "step-1") == "first"


@pytest.mark.parametrize("path", ["/entries/step-1", "/entries?after=-1"])
def test_who_does_not_know_the_token_gets_nothing(vault: Vault, tmp_path: pathlib.Path, path: str) -> None:
    stranger = Copies(tmp_path / "stranger", vault.url, "guess")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        stranger._ask("GET", path)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        stranger._ask("PUT", "/entries/step-1", b"x", 1)


@pytest.mark.parametrize("name", ["..", "../x", ".hidden", "a/b", ""])
def test_an_entry_has_a_plain_name(node: Callable[[str], Copies], name: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        node("one")._ask("PUT", f"/entries/{name}", b"x", 1)


def test_an_archive_writes_nowhere_else(tmp_path: pathlib.Path) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(tarfile.TarError, match="no place"):
        _unpack(tmp_path / "bad.tar", tmp_path / "in")

"""What a test needs of the machine beyond Python: it is skipped in one line where that is missing, and fails in CI."""

import contextlib
import functools
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import HANG_S

from harness import programs
from harness.backends.contract import load_backend
from harness.backends.local.backend import try_mode

CHILDREN = str(pathlib.Path(__file__).with_name("children"))  # of the Python programs that tests start
SLURM = pathlib.Path(__file__).resolve().parents[1] / "engines" / "slurm.sh"


def installed(group: str) -> bool:
    """Whether this machine has all programs of a group of the list, so that what they make up can be started."""
    return not programs.missing(programs.members(group))


def need(*names: str) -> None:
    """Skips the test if this machine lacks one of the programs; each must be in `harness/programs.py`."""
    if lacking := programs.missing(names):
        pytest.skip("; ".join(map(str, lacking)))


refusal = functools.cache(try_mode)


@functools.cache
def docker_lack() -> str:
    """Why no container can be started here; "" where one can."""
    capability = load_backend("docker").probe()
    return "" if capability.available else capability.summary


@functools.cache
def slurm_lack() -> str:
    """As `docker_lack`. Ours is started by the tests where it is installed."""
    if installed("slurm") and os.geteuid() == 0:
        return ""
    capability = load_backend("slurm").probe()
    return "" if capability.available else f"no Slurm: {capability.summary}"


def need_docker() -> None:
    if docker_lack():
        pytest.skip(docker_lack())


def need_slurm() -> None:
    if slurm_lack():
        pytest.skip(slurm_lack())


ENGINES = {need_docker: docker_lack, need_slurm: slurm_lack}


def need_mode(mode: str) -> str:
    """Skips the test if the local backend cannot have its nodes in this mode here."""
    if mode == "root" and os.geteuid() != 0:
        pytest.skip("not root")
    if (reason := refusal(mode)) is not None:
        pytest.skip(reason)
    return mode


def use_mode(patch: pytest.MonkeyPatch, mode: str) -> None:
    patch.setenv("CHAOS_LOCAL_MODE", need_mode(mode))


@contextlib.contextmanager
def headless_browser() -> Iterator[Any]:
    """Chromium without a window, driven by Playwright. Skips the test if one of the two is missing. `browser_page` opens
    its pages."""
    need("chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"], timeout=HANG_S * 1000
        )
        yield started
        started.close()


def browser_page(browser: Any, **how: Any) -> Any:
    """A new page, which waits as long for anything as tests do."""
    page = browser.new_page(**how)
    page.set_default_timeout(HANG_S * 1000)
    return page

"""Which kernels `make test-vm` boots where no option names one."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import chosen
import images
import pytest

from tests.commands import run

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git: apt-get install git")


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Commit a change of this file to the repository in ``tmp_path``; the commit's hash."""
    monkeypatch.delenv("OUTRACE_BASE", raising=False)
    author = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    git = partial(run, "git", *author, "-C", tmp_path, check=True)
    git("init", "--quiet")

    def commit(name: str) -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / name).open("a") as file:
            file.write("x\n")
        git("add", ".")
        git("commit", "--quiet", "-m", "x")
        return git("rev-parse", "HEAD").stdout.strip()

    return commit


def kernels(root: Path, **options: bool) -> int:
    return len(chosen.choose_by_change(root, **options)[0])


def test_one_kernel_by_the_hash_and_every_kernel_in_turn(tmp_path: Path, commit: Callable[[str], str]) -> None:
    head = commit("monitor/policy/rank.py")
    ((family,), why) = chosen.choose_by_change(tmp_path)
    assert family == images.FAMILIES[int(head[:8], 16) % 3]
    assert why == f"Linux {family.kernel}, by the hash of the commit (--all: all of them)"


@pytest.mark.parametrize("name", ["bpf/oom.c", "monitor/kernel/rings.py"])
def test_all_where_the_kernels_side_changed_lately(
    tmp_path: Path, commit: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    commit("README.md")
    changed = commit(name)
    for _ in range(chosen.COMMITS - 1):
        commit("README.md")
    assert (kernels(tmp_path), kernels(tmp_path, one=True)) == (3, 1)
    monkeypatch.setenv("OUTRACE_BASE", changed)
    assert kernels(tmp_path) == 1
    monkeypatch.delenv("OUTRACE_BASE")
    commit("README.md")
    assert kernels(tmp_path) == 1
    (tmp_path / name).write_text("not yet committed\n")
    assert kernels(tmp_path) == 3


def test_without_a_checkout_there_is_one_kernel(tmp_path: Path) -> None:
    assert kernels(tmp_path) == 1

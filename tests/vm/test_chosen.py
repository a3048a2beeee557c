"""Which kernels `make test-vm` boots where no option names one."""

import shutil
from pathlib import Path

import chosen
import images
import pytest

from tests.commands import run

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git: apt-get install git")


class Repository:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> str:
        author = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        return run("git", *author, "-C", str(self.root), *arguments, check=True).stdout.strip()

    def commit(self, *names: str) -> str:
        for name in names:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            with (self.root / name).open("a") as file:
                file.write("x\n")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "x")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.delenv("OUTRACE_BASE", raising=False)
    return Repository(tmp_path)


def test_one_kernel_by_the_hash_and_every_kernel_in_turn(repository: Repository) -> None:
    head = repository.commit("monitor/policy/rank.py")
    ((family,), why) = chosen.choose_by_change(repository.root)
    assert family == images.FAMILIES[int(head[:8], 16) % 3]
    assert why == f"Linux {family.kernel}, by the hash of the commit (--all: all of them)"


@pytest.mark.parametrize("name", ["bpf/oom.c", "monitor/kernel/rings.py"])
def test_all_where_the_kernels_side_changed_lately(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    repository.commit("README.md")
    changed = repository.commit(name)
    for _ in range(chosen.COMMITS - 1):
        repository.commit("README.md")
    assert len(chosen.choose_by_change(repository.root)[0]) == 3
    assert len(chosen.choose_by_change(repository.root, one=True)[0]) == 1
    monkeypatch.setenv("OUTRACE_BASE", changed)
    assert len(chosen.choose_by_change(repository.root)[0]) == 1
    monkeypatch.delenv("OUTRACE_BASE")
    repository.commit("README.md")
    assert len(chosen.choose_by_change(repository.root)[0]) == 1
    (repository.root / name).write_text("not yet committed\n")
    assert len(chosen.choose_by_change(repository.root)[0]) == 3


def test_without_a_checkout_there_is_one_kernel(tmp_path: Path) -> None:
    assert len(chosen.choose_by_change(tmp_path)[0]) == 1

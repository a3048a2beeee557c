"""The table of kernels in docs/measurements.md: what the last whole run of `make test-vm` found, and nothing else."""

import json
import shutil
from pathlib import Path
from typing import Any

import commands
import images
import matrix
import pytest
import table

from tests.commands import run

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git: apt-get install git")


def row(kernel: str, what: str = "kernel", **changed: Any) -> dict[str, Any]:
    where = {"name": kernel, "what": what, "kernel": kernel, "release": f"{kernel}.1-cloud", "cgroup": "v2"}
    result = {"memory_mib": 1024, "passed": 10, "failed": 0, "skipped": 0, "seconds": 1.0, "code": 0}
    return where | result | {"why": ""} | changed


def record(*rows: dict[str, Any], whole: bool = True) -> dict[str, Any]:
    return {"whole": whole, "seconds": 1, "rows": list(rows)}


def test_the_page_has_the_table_of_the_kept_results() -> None:
    page = table.PAGE.read_text()
    if not table.RECORD.exists():
        assert f"{table.BEGIN}\n{table.END}" in page, "a table without results"
        return
    kept = json.loads(table.RECORD.read_text())
    assert kept["whole"], "the record is of a part of the matrix"
    assert kept["commit"], "nobody knows of which code it is"
    assert kept["dirty"] is False, "it is of code that was never committed"
    assert table.written(page, kept) == page, (
        "docs/measurements.md was edited by hand: python3 scripts/vm/table.py RESULTS"
    )
    assert {r["kernel"] for r in kept["rows"]} <= {family.kernel for family in images.FAMILIES}


def test_a_line_for_each_kernel_and_a_column_for_each_suite() -> None:
    made = table.render(
        record(
            row("6.1", skipped=2),
            row("6.1", "global OOM, lockdown", memory_mib=512, passed=5, failed=1, code=1),
            row("7.2", code=None, why="hung: no end within its deadline of 9 s"),
            row("7.2", "global OOM, lockdown", memory_mib=512, code=2, passed=0),
        )
    )
    assert made.splitlines() == [
        "| kernel | cgroup | kernel tests (1024 MiB) | global OOM, lockdown tests (512 MiB) |",
        "| --- | --- | --- | --- |",
        "| Linux 6.1.1-cloud | v2 | 10 passed, 2 skipped | 5 passed, **1 failed** |",
        "| Linux 7.2.1-cloud | v2 | hung | 0 passed, exit code 2 |",
    ]


@needs_git
def test_what_ran_is_the_commit_and_whether_anything_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        command = ["git", *who, "-C", str(tmp_path), *arguments]
        return run(*command, check=True).stdout.strip()

    assert matrix.revision(tmp_path) == {}, "no checkout"
    git("init", "--quiet")
    assert matrix.revision(tmp_path) == {}, "no commit"
    (tmp_path / ".gitignore").write_text(".vm/\n")
    git("add", ".")
    git("commit", "--quiet", "--message=one")
    clean = {"commit": git("rev-parse", "--short", "HEAD"), "dirty": False}
    assert matrix.revision(tmp_path) == clean
    (tmp_path / ".vm").mkdir()
    (tmp_path / ".vm/results").write_text("ignored: no part of what runs")
    assert matrix.revision(tmp_path) == clean
    (tmp_path / "new.py").write_text("goes into the guest, too\n")
    assert matrix.revision(tmp_path) == clean | {"dirty": True}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert matrix.revision(tmp_path) == {}, "no git"


def test_only_what_is_between_the_marks_changes_and_results_are_kept(tmp_path: Path) -> None:
    page, kept, results = (tmp_path / name for name in ("measurements.md", "data/matrix.json", "matrix.json"))
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    results.write_text(json.dumps(record(row("6.1"))))
    table.update(results, page, kept)
    assert page.read_text() == f"before\n{table.BEGIN}\n{table.render(record(row('6.1')))}\n{table.END}\nafter\n"
    assert kept.read_text() == results.read_text()
    table.update(kept, page, kept)  # again, from what is kept


@pytest.mark.parametrize(
    ("results", "page", "expected"),
    [
        (json.dumps(record(whole=False)), f"{table.BEGIN}{table.END}", "is of a part of the matrix"),
        ("nonsense", f"{table.BEGIN}{table.END}", "run make test-vm first"),
        (json.dumps(record()), "no marks", "docs/measurements.md has no lines '<!-- kernels: written"),
    ],
)
def test_what_cannot_be_a_table_changes_nothing(tmp_path: Path, results: str, page: str, expected: str) -> None:
    for name, text in (("measurements.md", page), ("matrix.json", results)):
        (tmp_path / name).write_text(text)
    with pytest.raises(commands.VmError, match=expected):
        table.update(tmp_path / "matrix.json", tmp_path / "measurements.md", tmp_path / "kept.json")
    assert (tmp_path / "measurements.md").read_text() == page
    assert not (tmp_path / "kept.json").exists()

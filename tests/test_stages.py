"""The stages of `.ci/run`: all run, all are reported, and one that fails or hangs fails the run."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.commands import script
from tests.waiting import ends, out_of_time

JUNIT = '<testsuite><testcase classname="tests.a" name="test_{}" time="{}"/></testsuite>'


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = script("stages")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    return module


def run(stages: ModuleType, monkeypatch: pytest.MonkeyPatch, **commands: str) -> int:
    """Each in turn, but `test` and `guest` beside each other."""
    made = {
        name: stages.Stage(name, ("sh", "-c", command), 3.0 if "wait" in command else 60.0)
        for name, command in commands.items()
    }
    beside = [made.pop(name) for name in ("test", "guest") if name in made]
    monkeypatch.setattr(stages, "plan", lambda _: [beside, *([stage] for stage in made.values())])
    return int(stages.main())


def test_all_pass(stages: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    place = stages.RESULTS
    write = f"echo '{JUNIT.format('slow', 9)}' >{place}/test.xml; echo '7 passed, 1 skipped in 9 s'"
    assert run(stages, monkeypatch, test=write, guest="true", lint="true") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "7 passed, 1 skipped in 9 s"
    assert "     9.0 s  tests.a::test_slow" in lines
    assert [line.split()[0] for line in lines if line.endswith("s  passed")] == ["test", "guest", "lint"]


@pytest.mark.parametrize("bad", ["test", "guest", "lint"])
def test_one_that_fails_keeps_none_from_running(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    good = dict.fromkeys(("test", "guest", "lint", "races"), "true")
    assert run(stages, monkeypatch, **good | {bad: "echo why; exit 2"}) == 1
    out = capsys.readouterr().out
    assert "why\n" in out
    assert re.search(rf"^{bad} +\d+ s  exit code 2$", out, re.M)
    assert out.count("s  passed\n") == 3


def test_one_that_hangs_is_killed_with_its_children(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hung, child = "trap '' INT; sleep 1000 & echo $! >child; wait", stages.ROOT / "child"
    out_of_time(monkeypatch, 3.0, lambda: child.exists() and child.read_text())
    assert run(stages, monkeypatch, test=hung, lint="true") == 1
    assert re.search(r"\ntest +\d+ s  killed after 3 s\nlint +\d+ s  passed\nno test ran\n$", capsys.readouterr().out)
    ends(int(child.read_text()))

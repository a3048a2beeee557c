"""`make mutation` on a project of one function: what it changes, what it notices, and what it compares."""

import json
import sys
from pathlib import Path

import pytest

from tests.commands import script

mutants, mutate = script("mutants"), script("mutate")

CODE = """
def is_over(used: int, limit: int) -> bool:
    return used > limit
"""
#: The second test alone knows what happens at the limit.
TESTS = """
from monitor.limit import is_over

def test_above_and_below() -> None:
    assert is_over(2, 1) is True
    assert is_over(1, 2) is False
"""
AT_THE_LIMIT = """
def test_at_the_limit() -> None:
    assert is_over(1, 1) is False
"""
ALONE = """
def test_root_sees_no_process_of_others() -> None:
    import os
    assert os.geteuid() != 0 or len([name for name in os.listdir("/proc") if name.isdigit()]) < 5
"""


def fault(number: int, about: str, lane: str, file: str, old: str, new: str) -> str:
    """An entry of faults.toml: a change that brings a mended fault back."""
    return f"""
[[fault]]
commit = "{number:07}"
fault = "{about}"
lane = "{lane}"
tests = ["tests/policy/test_limit.py"]
diff = '''
@@ monitor/{file}.py
-    return {old}
+    return {new}
'''
"""


FAULTS = (
    fault(1, "everything is over its limit", "gate", "moved", "used > limit", "True")
    + fault(2, "its code is gone", "gate", "limit", "limit < used", "True")
    + fault(3, "only a race shows it", "races", "limit", "used > limit", "False")
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "monitor").mkdir()
    (tmp_path / "tests/policy").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (tmp_path / "monitor/limit.py").write_text(CODE)
    (tmp_path / "tests/policy/test_limit.py").write_text(TESTS + AT_THE_LIMIT)
    (tmp_path / "faults.toml").write_text(FAULTS)
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "DATA", tmp_path)
    return tmp_path


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, dict[str, str], str]:
    """Exit code, verdict of each mutant, and what is on stderr."""
    monkeypatch.setattr(sys, "argv", ["mutate.py", *arguments, "-o", "json"])
    code, printed = mutate.main(), capsys.readouterr()
    return code, {one["key"]: one["verdict"] for one in json.loads(printed.out)["mutants"]}, printed.err


def text_of(directory: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in directory.rglob("*") if path.is_file()}


def test_a_mutant_dies_where_a_test_knows_its_line_and_the_tree_stays_as_it_is(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "tests/policy/test_limit.py").write_text(TESTS + AT_THE_LIMIT + ALONE)
    before = text_of(project)
    limit = "monitor/limit.py is_over: used > limit ->"
    code, verdicts, said = run(monkeypatch, capsys, "monitor/limit.py")
    assert code == 0, said
    assert {key.partition("->")[2]: verdict for key, verdict in verdicts.items()} == {
        " used <= limit": "noticed",
        " used >= limit": "noticed",
        " return None": "noticed",
    }
    assert text_of(project) == before

    old = project / "old.json"
    old.write_text(json.dumps({"mutants": [{"key": key, "verdict": verdict} for key, verdict in verdicts.items()]}))
    (project / "tests/policy/test_limit.py").write_text(TESTS)
    code, verdicts, said = run(monkeypatch, capsys, "monitor/limit.py", "--budget=0", f"--compare={old}")
    assert (code, verdicts[f"{limit} used >= limit"], verdicts[f"{limit} used <= limit"]) == (1, "survived", "noticed")
    assert f"no longer noticed: {limit} used >= limit\n" in said
    assert "1 no longer noticed, 0 of code that is gone" in said


def test_tests_that_fail_by_themselves_prove_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_the_limit = "\ndef test_red() -> None:\n    assert is_over(1, 1)\n"
    (project / "tests/policy/test_limit.py").write_text(TESTS + at_the_limit)
    code, verdicts, said = run(monkeypatch, capsys, "monitor/limit.py", "--only=used >= limit")
    assert (code, [*verdicts.values()]) == (2, ["survived"])
    assert "fails without any mutation, and is left out: tests/policy/test_limit.py::test_red\n" in said


def test_a_fault_is_found_by_its_text_and_named_where_that_is_gone(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, verdicts, _ = run(monkeypatch, capsys, "faults")
    assert code == 2
    assert verdicts == {
        "0000001 everything is over its limit": "noticed",
        "0000002 its code is gone": "stale",
        "0000003 only a race shows it": "races",
    }
    code, verdicts, _ = run(monkeypatch, capsys, "faults", "--only=0000003", "--races")
    assert (code, verdicts) == (0, {"0000003 only a race shows it": "noticed"})

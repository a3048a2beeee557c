"""`make races`: its judge, what it makes of the benches' answers, and the table of what it runs."""

from pathlib import Path
from typing import Any

import pytest

from tests.commands import script
from tests.waiting import out_of_time

races = script("races")


@pytest.mark.parametrize(
    ("lost", "runs", "base_lost", "base_runs", "expected"),
    [
        (1, 500, 0, 360, "as before"),  # one loss is a datum
        (1, 2, 0, 360, "undecided"),
        (2, 10, 0, 360, "worse"),
        (0, 40, 0, 360, "undecided"),
        (0, 120, 0, 360, "as before"),
        (4, 40, 10, 100, "as before"),  # it always lost one in ten
        (14, 40, 10, 100, "worse"),
        (9, 10, 99, 100, "undecided"),  # nothing can become worse
    ],
)
def test_the_judge(lost: int, runs: int, base_lost: int, base_runs: int, expected: str) -> None:
    assert races.judge(lost, runs, base_lost, base_runs) == expected


def hold(**changed: Any) -> dict[str, Any]:
    return {"name": "4k", "runs": 5, "held": 5, "right": 5, "oom": 0, "killed": 0, "failed": 0} | changed


def test_who_was_held_and_damaged_is_a_broken_promise_and_who_was_late_a_loss() -> None:
    assert races.of_holds([hold()]) == races.Found(5)
    assert races.of_holds([hold(held=4, right=4)]) == races.Found(5, ["4k"])
    assert races.of_holds([hold(right=4)]).broken == ["4k: a process of a held pod was damaged"]
    assert races.of_races([{"name": "user", "runs": 5, "wins": 3}]) == races.Found(5, ["user", "user"])
    kills = {"name": "hot", "runs": 1, "right": 0, "problems": ["lab/a was changed"]}
    assert races.of_kills([kills]).broken == ["hot: lab/a was changed"]


def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A tree whose tests of races are this."""
    (tmp_path / "test_it.py").write_text(f"import pytest, time\npytestmark = pytest.mark.races\n{text}")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = races\n")
    monkeypatch.setattr(races, "ROOT", tmp_path)


def test_what_pytest_finds_left_behind_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(
        tmp_path, monkeypatch,
        "@pytest.fixture\ndef left():\n    yield\n    pytest.fail('left a pin')\n"
        "def test_good(): pass\ndef test_late(): assert 0, 'late'\ndef test_leaves(left): pass\n"
        "def test_not_here(): pytest.skip('x')\n",
    )  # fmt: skip
    found = races.tests(["test_it.py"], tmp_path / "junit.xml", None)
    assert found.runs == 3
    assert [text.partition("\n")[0] for text in found.lost] == ["test_it::test_late: AssertionError: late"]
    assert len(found.broken) == 1
    assert "left a pin" in found.broken[0]


def test_what_is_lost_three_times_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import pathlib\ndef test_fault(): assert 0, 'wrong'\ndef test_good(): pass\n"
    late = "def test_late():\n    tries = pathlib.Path('tries')\n    tries.mkdir(exist_ok=True)\n"
    late += "    (tries / str(time.monotonic_ns())).touch()\n    assert len(list(tries.iterdir())) == 3, 'late'\n"
    written(tmp_path, monkeypatch, text + late)
    found = races.tests(["test_it.py"], tmp_path / "junit.xml", None)
    assert (found.runs, len(found.lost)) == (3, 2)
    assert [text.partition("\n")[0] for text in races.faults(tmp_path / "junit.xml")] == [
        "test_it::test_fault: AssertionError: wrong"
    ]


def test_a_race_that_is_still_run_when_time_is_over_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def test_late(): assert 0, 'late'\ndef test_endless(): open('begun', 'w'); time.sleep(1000)\n"
    written(tmp_path, monkeypatch, text)
    out_of_time(monkeypatch, 1000 + races.MORE_S, (tmp_path / "begun").exists)
    found = races.tests(["test_it.py"], tmp_path / "junit.xml", within=1000)
    assert [text.partition("\n")[0] for text in found.lost] == ["test_it::test_late: AssertionError: late"]
    assert not found.broken


def test_the_sample_is_a_tenth_and_what_the_change_reaches() -> None:
    names = [f"tests/daemon/test_hold_live.py::test_{n}" for n in range(1000)]
    drawn = races.sample(names, "abc", [])
    assert 60 < len(drawn) < 140
    assert races.sample(names, "abd", []) != drawn
    assert races.sample(names, "abc", ["tests/daemon/test_hold_live.py"])[: len(drawn)] == drawn
    assert len(races.sample(names, "abc", ["tests/daemon/test_hold_live.py"])) == 1000

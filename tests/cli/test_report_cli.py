"""`outrace report` as it is called: text, JSON, its span of time, what cannot be read."""

import json
import sqlite3
import sys
import zlib
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from monitor.cli.main import cli
from monitor.side.incidents.store import IncidentStore
from tests.cli.test_incident_page import HOSTILE, ROOT, WON
from tests.commands import run
from tests.side.incident_samples import DURING_GRACE, EVICTION_WON, NOW, SAMPLES
from tests.side.stores import silent


def store(path: Path) -> IncidentStore:
    return IncidentStore(path / "incidents.db", log=silent(), clock=lambda: NOW)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    made = store(tmp_path)
    for incident in (*SAMPLES, WON):
        made.add(incident)
    return tmp_path


def report(state: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["report", *arguments, "--state-dir", str(state)])


def test_the_text_has_verdicts_margins_pods_and_advice(state: Path) -> None:
    done = report(state, "--since", "2026-01-01T00:00")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].endswith(": 4 incidents")
    assert lines[1] == "3 of them races: 2 won, 0 would have been won (only observed), 1 lost"
    rows = {line.split()[0]: line for line in lines if line}
    assert "21.0Mi, 8.730 ms" in rows["eviction_won"]
    assert rows["eviction_won"].endswith(EVICTION_WON["id"])
    assert "-48.0Mi, -15.8 s" in rows["oom_during_grace"]
    assert rows["lab/hog"].split()[:6] == ["lab/hog", "1", "-", "1", "-", "-"]
    assert "73.8Mi/s (63.0Mi in 0.854 s)" in rows["lab/hog"]
    assert "growth is not known of 3 incidents" in lines
    assert any(DURING_GRACE["advice"] in line for line in lines)


def test_json_is_the_same_figures(state: Path) -> None:
    done = report(state, "--since", "2026-01-01T00:00", "-o", "json")
    found = json.loads(done.stdout)
    assert (found["incidents"], found["races"], found["won"], found["lost"]) == (4, 3, 2, 1)
    assert {(one["grew_most"], one["own_limit"]) for one in found["pods"][:2]} == {(1, 0), (0, 1)}
    assert all((one["grew_most"], one["own_limit"]) == (0, 0) for one in found["pods"][2:])
    assert found["since"] < found["until"]


def test_only_what_began_in_the_span_counts(state: Path) -> None:
    span = ["--since", "2026-01-31T04:00:00Z", "--until", "2026-01-31T04:30:00Z"]
    assert json.loads(report(state, *span, "-o", "json").stdout)["incidents"] == 1
    assert json.loads(report(state, "--since", "9999d", "-o", "json").stdout)["incidents"] == 4
    nothing = report(state, "--since", "1s")
    assert nothing.exit_code == 0
    assert nothing.output.endswith(": 0 incidents\n")


@pytest.mark.parametrize(
    "head",
    [b"\0", *map(zlib.compress, (b"[]", b'{"id":"x","verdict":"won","start":"soon","end":"2026-01-31T04:00Z"}'))],
    ids=["damaged", "of another program", "of another version"],
)
def test_a_row_that_is_no_incident_is_counted_and_left_out(state: Path, head: bytes) -> None:
    with closing(sqlite3.connect(state / "incidents.db")) as database, database:
        database.execute("UPDATE incidents SET head = ? WHERE id = ?", (head, WON["id"]))
    done = report(state, "--since", "2026-01-01T00:00", "-o", "json")
    assert done.exit_code != 0
    assert json.loads(done.stdout)["incidents"] == 3
    assert "1 incidents in" in str(done.exception)


def test_without_a_store_there_is_no_incident(tmp_path: Path) -> None:
    assert report(tmp_path).output.endswith(": 0 incidents\n")
    done = report(tmp_path / "none", "-o", "json")
    assert (done.exit_code, json.loads(done.stdout)["incidents"]) == (0, 0)
    assert f"no incidents stored in {tmp_path / 'none'} yet (there is no such directory)" in done.stderr


def test_names_of_processes_do_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    store(tmp_path).add({**EVICTION_WON, "evicted": [{"pod": HOSTILE[-1]}], "advice": f"kill {HOSTILE[-1]}"})
    done = report(tmp_path, "--since", "2026-01-01T00:00")
    assert done.exit_code == 0, done.output
    assert "\\x1b[2J\\x00\\u202e" in done.output
    assert not {"\x1b", "\x00", "\u202e"} & set(done.output)


@pytest.mark.parametrize("since", ["", "soon", "-1d", "1e9d", "٣d", "7D", "5"])
def test_what_is_no_time_is_refused(state: Path, since: str) -> None:
    done = report(state, f"--since={since}")
    assert done.exit_code == 2
    assert "is neither a duration" in done.output


def test_a_closed_stdout_is_no_traceback(state: Path) -> None:
    command = ("sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "monitor.cli.main", "report", "--no-daemon")
    done = run(*command, "--state-dir", str(state), env={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_span_that_ends_before_it_begins_is_refused(state: Path) -> None:
    done = report(state, "--since", "1d", "--until", "2d")
    assert "--until: nothing lies between it and --since" in str(done.exception)

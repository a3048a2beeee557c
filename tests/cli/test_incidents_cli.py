"""`outrace incidents` as it is called: tables, text, JSON, exit codes, on stores as the daemon leaves them."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click import unstyle

from monitor.cli import incident_text
from monitor.cli.incident_text import show_lines
from monitor.cli.output import format_ms
from monitor.race import timeline
from monitor.side.incidents import IncidentStore
from tests import live, others
from tests.commands import called
from tests.side.incident_samples import DURING_GRACE, EVICTION_WON, OWN_LIMIT, SAMPLES
from tests.terminals import seat


@pytest.fixture(autouse=True)
def _one_hour_east_of_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC-01:00")  # POSIX signs
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def incidents(*arguments: str) -> subprocess.CompletedProcess[str]:
    return called("incidents", *arguments)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("state")
    store = IncidentStore(directory / "incidents")
    for sample in SAMPLES:
        store.add(sample)
    return str(directory)


def test_times_are_local(state: str) -> None:
    assert "2026-01-31T05:00:00+01:00" in incidents("list", "--state-dir", state).stdout.splitlines()[2]
    when = "when   2026-01-31T04:12:09.412+01:00, for 19.0 ms, in node"
    assert when in incidents("show", EVICTION_WON["id"], "--state-dir", state).stdout.splitlines()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (("--since", "2026-01-31T05:00:00"), [OWN_LIMIT, DURING_GRACE]),  # local
        (("--since", "2026-01-31T05:00:00+01:00", "--until", "2026-01-31T05:00:00Z"), [DURING_GRACE]),
        (("--since", "1h"), []),
        (("--since", "9999d1h"), [OWN_LIMIT, DURING_GRACE, EVICTION_WON]),
        (("--until", "1d"), [OWN_LIMIT, DURING_GRACE, EVICTION_WON]),
    ],
)
def test_filters(state: str, filters: tuple[str, ...], expected: list[dict[str, Any]]) -> None:
    done = incidents("list", "--state-dir", state, "-o", "json", *filters)
    assert done.returncode == 0, done.stderr
    assert [found["id"] for found in json.loads(done.stdout)["incidents"]] == [one["id"] for one in expected]


def on_terminal(*arguments: str, columns: int, **environment: str) -> str:
    """What a terminal of that width is sent."""
    with seat(sys.executable, "-c", live.CLI, "incidents", *arguments, columns=columns, **environment) as made:
        made.screen.feed = lambda _: None
        assert made.end() == 0
        return made.raw.decode().replace("\r\n", "\n")


def test_colours_and_width_are_those_of_the_terminal(state: str) -> None:
    text = on_terminal("show", EVICTION_WON["id"], "--state-dir", state, columns=80)
    assert text.startswith("\x1b[32m\x1b[1mEviction won")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, plain.splitlines())) <= 80
    # Nothing is shown by colour alone.
    assert plain == on_terminal("show", EVICTION_WON["id"], "--state-dir", state, columns=80, NO_COLOR="1")
    table = on_terminal("list", "--state-dir", state, columns=100).splitlines()
    assert [len(line) for line in table[2:]] == [100, 100]
    assert table[2].endswith("...")


def test_names_of_processes_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\n\x9b2J"
    victim = OWN_LIMIT["oom_victims"][0] | {"comm": evil}
    bad = OWN_LIMIT | {
        "oom_victims": [victim],
        "summary": f"killed {evil}",
        "steps": [{"t_ms": 0, "what": evil, evil: evil}],
    }
    IncidentStore(tmp_path / "incidents").add(bad)
    for arguments in (("list",), ("show", "latest")):
        done = incidents(*arguments, "--state-dir", str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert "\\x1b]0;owned\\x07\\n\\x9b2J" in done.stdout
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.stdout)


def test_nothing_stored_yet(tmp_path: Path) -> None:
    for directory, more in ((tmp_path, ""), (tmp_path / "none", " (there is no such directory)")):
        note = f"no incidents stored in {directory}{more}\n"
        done = incidents("list", "--state-dir", str(directory))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", note)
        done = incidents("list", "--state-dir", str(directory), "-o", "json")
        assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, {"incidents": []}, "")
        live.one_line(incidents("show", "latest", "--state-dir", str(directory)), 1, "no incidents stored in")


def test_a_damaged_incident_costs_itself(state: str, tmp_path: Path) -> None:
    shutil.copytree(state, tmp_path, dirs_exist_ok=True)
    (tmp_path / "incidents" / f"{OWN_LIMIT['id']}.json").write_text("{")
    done = incidents("list", "--state-dir", str(tmp_path), "-o", "json")
    assert len(json.loads(done.stdout)["incidents"]) == 2
    assert done.returncode == 1
    assert "1 incidents in" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_reader_without_rights_gets_a_remedy(state: str) -> None:
    with others.shared() as place:
        closed = place / "state"
        closed.mkdir(mode=0o750)
        stored = shutil.copytree(f"{state}/incidents", closed / "incidents")

        def as_nobody() -> subprocess.CompletedProcess[str]:
            user = {"user": others.UID, "group": others.UID, "extra_groups": []}
            return live.outrace("incidents", "list", "--state-dir", str(closed), **user)

        done = as_nobody()
        if "ModuleNotFoundError" in done.stderr:
            pytest.skip(f"the sources cannot be read by others: {done.stderr.splitlines()[-1]}")
        live.one_line(done, 1, "Permission denied; use sudo")
        # A member of the group may read.
        for one in (closed, stored, *stored.iterdir()):
            os.chown(one, 0, others.UID)
        done = as_nobody()
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == 4


@pytest.mark.parametrize("ms", [0.0, 0.0012, 9.9994, -12.3, 999.94, 9999.4, 10_000, -86_400_000.0])
def test_times_are_short_and_keep_their_sign(ms: float) -> None:
    text = format_ms(ms)
    value, unit = text.split()
    assert abs(float(value) * {"ms": 1, "s": 1000}[unit] - ms) <= max(0.0006, abs(ms) / 1000)
    assert len(text) <= 12


def test_every_kind_of_step_has_a_sentence_and_an_unknown_one_its_fields() -> None:
    assert incident_text.describe({"t_ms": 1, "what": "new_thing", "usage": 2 << 20, "of": "x", "no": None}) == (
        "new thing: usage 2097152, of x"
    )
    # One of another version of outrace, whose fields are not those of this one.
    assert incident_text.describe({"t_ms": 1, "what": "decided", "pod": "a/b"}) == "decided: pod a/b"
    kinds = {what for what, _ in timeline._STEPS.values()} | {"not_held", "exiting", "cache_activated", "grew", "more"}
    assert len(kinds) > 12
    assert kinds - set(incident_text._TEXTS) == set()


def test_oom_killed_and_evicted_as_the_api_has_it() -> None:
    (victim,) = {victim["pod"] for victim in OWN_LIMIT["oom_victims"]}
    lines = show_lines({**OWN_LIMIT, "reported_evicted": [victim]}, 1000)
    expected = f"{victim} is Evicted by the kubelet as the API has it, and was OOM-killed"
    assert expected in unstyle(" ".join(" ".join(lines).split()))

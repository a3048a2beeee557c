"""`outrace incidents advise`."""

import json
from pathlib import Path
from typing import Any

from click import unstyle

from monitor.cli.incident_text import show_lines
from monitor.side.export.log import Log
from monitor.side.incidents.store import IncidentStore
from tests.cli.test_incidents_cli import incidents
from tests.side.incident_samples import EVICTION_WON, NOW, OWN_LIMIT


def shown(incident: dict[str, Any]) -> str:
    return unstyle(" ".join(" ".join(show_lines(incident, 1000)).split()))


def test_oom_killed_and_evicted_as_the_api_has_it() -> None:
    (victim,) = {victim["pod"] for victim in OWN_LIMIT["oom_victims"]}
    found = shown({**OWN_LIMIT, "reported_evicted": [victim]})
    assert f"{victim} is Evicted by the kubelet as the API has it, and was OOM-killed" in found


def test_advise_shows_the_threshold_that_would_have_won(tmp_path: Path) -> None:
    """The third race took 3 MiB in 5 ms."""
    store = IncidentStore(tmp_path / "incidents.db", log=Log(), clock=lambda: NOW)
    burst = {"signal": "memory.available", "capacity": 2**34, "threshold": 100 * 2**20, "beyond": 0, "rate": 1e8}
    outside = {"outside": 1100 * 2**20, "reserved": 1024 * 2**20}
    for n in range(3):
        most = [[5, (n + 1) * 2**20], [12_500, (n + 1) * 2**30]]
        more = outside if n == 1 else {}
        store.add({**EVICTION_WON, "id": f"race-{n}", "burst": {**burst, "most": most, **more}})
    store.add(OWN_LIMIT)  # not a race: counts for nothing
    done = incidents("advise", "--state-dir", str(tmp_path), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["incidents"] == 4
    enforce = answer["advice"][-1]
    assert (enforce["reaction"], enforce["threshold"], enforce["episodes"]) == ("enforce", 3 * 2**20 + 1, 3)
    assert set(enforce["evidence"]) == {"race-0", "race-1", "race-2"}
    # 1100 MiB were used outside the pods, 1024 are reserved: 76 more.
    short = {"outside": 1100 * 2**20, "reserved": 1024 * 2**20, "short": 76 * 2**20}
    assert answer["reservation"] == {**short, "incident": "race-1", "evidence": ["race-1"]}
    text = incidents("advise", "--quantile", "0.5", "--state-dir", str(tmp_path)).stdout
    assert "memory.available<3Mi" in text
    assert "3 incidents: race-2, race-1, race-0" in text
    assert "reserve 76Mi more" in text


def test_advise_without_a_race(tmp_path: Path) -> None:
    done = incidents("advise", "--state-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "")
    assert "no race for memory among the 0 incidents" in done.stderr
    assert "nothing to work it out from" in done.stderr
    answer = json.loads(incidents("advise", "--state-dir", str(tmp_path), "-o", "json").stdout)
    assert answer == {"incidents": 0, "advice": [], "reservation": None}


def test_what_is_stored_and_cannot_be_is_counted_as_damaged(tmp_path: Path) -> None:
    """A row that was written by hand: no growth at all, or two sizes at one moment."""
    burst = {"signal": "memory.available", "capacity": 2**34, "threshold": 2**20, "beyond": 0, "rate": None}
    store = IncidentStore(tmp_path / "incidents.db", log=Log(), clock=lambda: NOW)
    for name, most in (("whole", [[5, 9]]), ("empty", []), ("twice", [[5, 1], [5, 2]]), ("never", [[0, 1]])):
        store.add({**EVICTION_WON, "id": name, "burst": {**burst, "most": most}})
    done = incidents("advise", "--state-dir", str(tmp_path), "-o", "json")
    assert {each["episodes"] for each in json.loads(done.stdout)["advice"]} == {1}
    assert done.returncode == 1
    assert done.stderr == f"outrace: error: 3 incidents in {tmp_path / 'incidents.db'} are damaged and not shown\n"


def test_advise_refuses_what_it_does_not_know() -> None:
    for arguments, words in (
        (("--quantile", "nan"), "'nan' is not a valid float;"),
        (("--recording", "file"), "`outrace incidents advise --recording` is gone: use `outrace replay FILE`"),
    ):
        done = incidents("advise", *arguments)
        assert done.returncode == 2
        assert words in done.stderr

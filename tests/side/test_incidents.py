"""The incident store on real files: what goes in comes out, and its size is bounded."""

import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.errors import MonitorError
from monitor.side.incidents import reader as file
from monitor.side.incidents.reader import IncidentReader, UnknownIncident
from monitor.side.incidents.store import steady_clock
from tests.commands import run
from tests.live import environment
from tests.side.incident_samples import DURING_GRACE, EVICTION_WON, NOW, OWN_LIMIT, SAMPLES, variant
from tests.side.stores import intact, size_on_disk, store_at

#: Less would be a single incident and its transaction.
MIN_BYTES = 1 << 20


# what goes in comes out
def test_incidents_come_back_as_they_were_newest_first(path: Path) -> None:
    store = store_at(path)
    for sample in SAMPLES:
        store.add(sample)
    for reader in (store, IncidentReader(path)):
        listed = reader.list()
        assert [found["verdict"] for found in listed] == ["own_limit", "oom_during_grace", "eviction_won"]
        assert listed == [{k: v for k, v in s.items() if k != "steps"} for s in (OWN_LIMIT, DURING_GRACE, EVICTION_WON)]
        for sample in SAMPLES:
            assert json.dumps(reader.get(sample["id"])) == json.dumps(sample)  # the order of the keys too
        assert list(reader.all()) == list(SAMPLES)
        assert (reader.get("latest"), reader.get("2026-01-31T04")) == (OWN_LIMIT, DURING_GRACE)
    assert (store.stored, store.problem, store.lost) == (3, "", 0)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_later_version_takes_the_place_of_the_earlier(path: Path) -> None:
    store = store_at(path)
    for _ in range(3):
        store.add(EVICTION_WON)
    store.add(OWN_LIMIT)
    assert store.stored == 2
    later = EVICTION_WON | {"verdict": "oom_after_eviction", "flags": ["collateral"], "steps": []}
    store.add(later)
    assert (store.stored, store.get(EVICTION_WON["id"])) == (2, later)
    assert store.list(flag="collateral", verdict="oom_after_eviction")[0]["id"] == EVICTION_WON["id"]
    assert store.list(verdict="eviction_won") == []


def test_filters(path: Path) -> None:
    store = store_at(path)
    for sample in SAMPLES:
        store.add(sample)
    first, second, third = (sample["id"] for sample in SAMPLES)

    def ids(**filters: Any) -> list[str]:
        return [found["id"] for found in store.list(**filters)]

    begin = file.unix_time(DURING_GRACE["start"])
    assert (ids(since=begin), ids(until=begin)) == ([third, second], [second, first])
    assert (ids(since=begin, until=begin), ids(verdict="own_limit")) == ([second], [third])
    assert (ids(flag="wrong_victim"), ids(flag="wrong"), ids(pod="shop/cart")) == ([second], [], [first])
    assert ids(pod="prod/db-0") == ids(pod="db-0") == [second]
    assert ids(pod="batch/report") == [second]
    assert ids(pod="%") == ids(pod="shop") == []
    assert ids(limit=2) == [third, second]


def test_unknown_ids_name_those_that_are_close(path: Path) -> None:
    store = store_at(path)
    with pytest.raises(UnknownIncident, match="no incidents stored"):
        store.get("latest")
    for number in range(4):
        store.add(variant(number))
    with pytest.raises(UnknownIncident, match=r"close: .*incident-00002"):
        store.get("incident-0002")
    with pytest.raises(UnknownIncident, match=r"4 incidents begin with 'incident-'.*, \.\.\."):
        store.get("incident-")
    with pytest.raises(UnknownIncident, match="the newest is incident-00003"):
        store.get("zzz")
    with pytest.raises(UnknownIncident):
        store.get("")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(extra=st.dictionaries(st.text(min_size=1), JSON, max_size=4), steps=st.lists(JSON, max_size=5))
@settings(max_examples=200)
def test_whatever_dict_comes_is_stored(extra: dict[str, Any], steps: list[Any]) -> None:
    incident = extra | EVICTION_WON | {"steps": steps}
    row = file.encode(incident)
    assert file.decode(row["head"], row["steps"]) == incident
    assert "steps" not in file.decode(row["head"])
    infinite = file.encode(incident | {"extra": [float("inf"), float("nan"), 1.5]})
    assert file.decode(infinite["head"])["extra"] == [None, None, 1.5]


@pytest.mark.parametrize("text", ["\x1b[2Jevil\n", "\udc80\udcff", "\U0001f4a5", "a\0b", "'; DROP TABLE incidents"])
def test_hostile_names_come_back_and_are_found(path: Path, text: str) -> None:
    store = store_at(path)
    incident = EVICTION_WON | {"evicted": [{"pod": text, "grace_s": 0, "rank": 1}], "summary": text}
    store.add(incident)
    assert store.get("latest") == incident
    if "\0" not in text and text.isascii():
        assert len(store.list(pod=text)) == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"id": ""}, "id and verdict must be text"),
        ({"verdict": None}, "id and verdict must be text"),
        ({"id": "a\nb"}, "id and verdict must be text"),
        ({"start": "yesterday"}, "yesterday"),
        ({"start": "2026-01-31T03:12:09"}, "offset from UTC"),
        ({"end": True}, "not a time"),
        ({"facts": object()}, "not JSON serializable"),
        ({"steps": ["x" * 64 + str(n) for n in random.Random(1).sample(range(10**12), 60_000)]}, "too large"),
    ],
)
def test_what_cannot_be_stored_is_reported_and_does_not_end_the_worker(
    path: Path, change: dict[str, Any], expected: str
) -> None:
    store = store_at(path, max_bytes=MIN_BYTES)
    store.add(OWN_LIMIT)
    with pytest.raises(MonitorError, match=expected):
        store.add(EVICTION_WON | change)
    store.record(EVICTION_WON | change)
    assert store.lost == 1
    store.record(EVICTION_WON)
    assert store.stored == 2


def test_readers_of_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    empty.touch()
    for path in (tmp_path / "incidents.db", tmp_path / "no" / "incidents.db", empty):
        reader = IncidentReader(path)
        assert (reader.list(), list(reader.all())) == ([], [])
    assert sorted(os.listdir(tmp_path)) == ["empty.db"]


def test_sqlite_is_imported_with_the_first_incident_only() -> None:
    code = (
        "import sys; from pathlib import Path; from monitor.side.incidents.store import IncidentStore\n"
        "IncidentStore(Path('/nowhere/incidents.db'))\n"
        "sys.exit('sqlite3' in sys.modules)"
    )
    run(sys.executable, "-c", code, env=environment(), check=True)


# bounds
def test_old_incidents_go_by_the_time_they_were_stored(path: Path) -> None:
    """Not by the times in them: those are of a wall clock that may have been wrong."""
    now = NOW
    store = store_at(path, max_age_s=3600.0, clock=lambda: now)
    for number in range(5):
        now = NOW + 600 * number
        store.add(variant(number, start=-1e9, end=-1e9))
    assert store.stored == 5
    now = NOW + 3600 + 2300
    store.add(variant(9, start=4e9, end=4e9))
    assert sorted(found["id"] for found in store.list()) == ["incident-00004", "incident-00009"]
    now = NOW + 10**6
    store.add(variant(10))
    assert [found["id"] for found in store.list()] == ["incident-00010"]


def test_setting_the_clock_ages_nothing(path: Path) -> None:
    wall, boot = NOW, 100.0
    clock = steady_clock(lambda: wall, lambda: boot)
    assert clock() == NOW
    wall, boot = NOW + 365 * 86400, 101.0
    assert clock() == NOW + 1.0
    store_at(path).add(variant(1))
    store_at(path, clock=lambda: 0.0).add(variant(2))  # a machine that begins in 1970
    store = store_at(path, clock=lambda: NOW + 29 * 86400)
    store.add(variant(3))
    assert store.stored == 3


def test_the_number_kept_is_bounded_whatever_the_clock_shows(path: Path) -> None:
    store = store_at(path, keep=5, max_age_s=1e12)
    for number in range(12):
        store.add(variant(number, start=float(-number), end=0.0))  # a clock that runs backwards
    assert [found["id"] for found in store.list()] == [f"incident-{n:05d}" for n in range(7, 12)]
    store.add(variant(7, verdict="relieved"))  # a known one replaces no other
    assert store.stored == 5


def own_limit(number: int, pod: str) -> dict[str, Any]:
    victim = {**OWN_LIMIT["oom_victims"][0], "pod": pod}
    return variant(number, OWN_LIMIT, oom_victims=[victim], invoker={**OWN_LIMIT["invoker"], "pod": pod})


def test_a_pod_that_has_incidents_all_day_leaves_others_theirs(path: Path) -> None:
    store = store_at(path, keep=6)
    store.add(own_limit(0, "shop/db"))
    for number in range(1, 9):
        store.add(own_limit(2 * number, "shop/web"))
        store.add(own_limit(2 * number + 1, f"user-1000/u{number}.scope"))  # a user's units are the user's
    kept = {found["id"] for found in store.list()}
    assert len(kept) == 6
    assert {"incident-00000", "incident-00016", "incident-00017"} <= kept


def test_a_tenant_that_makes_pod_after_pod_leaves_others_theirs(path: Path) -> None:
    store = store_at(path, keep=6)
    for number in range(30):
        store.add(own_limit(number, "prod/db-0" if number < 2 else f"jobs/job-{number}"))
    kept = {found["id"] for found in store.list()}
    assert kept == {f"incident-{number:05d}" for number in (0, 1, 26, 27, 28, 29)}


def test_the_size_on_disk_is_bounded_over_a_thousand_incidents(fast: Path) -> None:
    noise = random.Random(7)
    store = store_at(fast, max_bytes=MIN_BYTES)
    largest, ended = 0, threading.Event()

    def sample() -> None:
        nonlocal largest
        while not ended.wait(0.001):
            largest = max(largest, size_on_disk(fast))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        for number in range(1200):
            steps = [{"t_ms": n, "what": "x", "n": noise.random()} for n in range(noise.choice((1, 20, 60, 400)))]
            store.add(variant(number, steps=steps))
            largest = max(largest, size_on_disk(fast))
    finally:
        ended.set()
        sampler.join()
    assert MIN_BYTES / 2 < largest <= MIN_BYTES
    kept = intact(fast)
    # The newest, without a gap, and not just a few: a third of the store at least is in use.
    assert kept == [f"incident-{n:05d}" for n in range(1200 - len(kept), 1200)]
    assert sum(len(json.dumps(each)) for each in store.all()) > MIN_BYTES / 3

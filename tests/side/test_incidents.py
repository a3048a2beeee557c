"""The incident store on real files: what goes in comes out, its size is bounded, and no trouble harms it."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from monitor.errors import MonitorError
from monitor.side.incidents import IncidentReader, IncidentStore, UnknownIncident, unix_time
from tests.filesystems import Mounts
from tests.live import TIMEOUT_S, environment
from tests.side.incident_samples import DURING_GRACE, EVICTION_WON, MIB, OWN_LIMIT, SAMPLES, variant


@pytest.fixture
def path() -> Iterator[Path]:
    """Where a flush costs nothing."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="outrace-test-", dir=place) as directory:
        yield Path(directory) / "state" / "incidents"


def filled(path: Path) -> IncidentStore:
    store = IncidentStore(path)
    for sample in SAMPLES:
        store.add(sample)
    return store


def kept(store: IncidentReader) -> set[int]:
    """The numbers of the variants in the store."""
    return {int(found["id"].removeprefix("incident-")) for found in store.list()}


# what goes in comes out
def test_incidents_come_back_as_they_were_newest_first(path: Path) -> None:
    store = filled(path)
    for reader in (store, IncidentReader(path)):
        listed = reader.list()
        assert listed == [{k: v for k, v in s.items() if k != "steps"} for s in (OWN_LIMIT, DURING_GRACE, EVICTION_WON)]
        for sample in SAMPLES:
            assert json.dumps(reader.get(sample["id"])) == json.dumps(sample)  # the order of the keys too
        assert list(reader.all()) == list(SAMPLES)
        assert (reader.get("latest"), reader.get("2026-01-31T04")) == (OWN_LIMIT, DURING_GRACE)
    assert store.stored == 3
    assert {one.stat().st_mode & 0o777 for one in path.iterdir()} == {0o640}


def test_a_later_version_takes_the_place_of_the_earlier(path: Path) -> None:
    store = filled(path)
    later = EVICTION_WON | {"verdict": "oom_after_eviction", "flags": ["collateral"], "steps": []}
    store.add(later)
    assert (store.stored, store.get(EVICTION_WON["id"])) == (3, later)
    assert store.list(flag="collateral", verdict="oom_after_eviction")[0]["id"] == EVICTION_WON["id"]
    assert store.list(verdict="eviction_won") == []
    assert store.get("latest") == OWN_LIMIT  # by the start


def test_filters(path: Path) -> None:
    store = filled(path)
    first, second, third = (sample["id"] for sample in SAMPLES)

    def ids(**filters: Any) -> list[str]:
        return [found["id"] for found in store.list(**filters)]

    begin = unix_time(DURING_GRACE["start"])
    assert (ids(since=begin), ids(until=begin)) == ([third, second], [second, first])
    assert (ids(since=begin, until=begin), ids(verdict="own_limit")) == ([second], [third])
    assert (ids(flag="wrong_victim"), ids(flag="wrong"), ids(pod="shop/cart")) == ([second], [], [first])
    assert ids(pod="prod/db-0") == ids(pod="db-0") == [second]
    assert ids(pod="batch/report") == [second]
    assert ids(pod="%") == ids(pod="shop") == []
    assert ids(limit=2) == [third, second]


def test_an_id_that_is_none_or_several_is_refused(path: Path) -> None:
    store = IncidentStore(path)
    with pytest.raises(UnknownIncident, match="no incidents stored"):
        store.get("latest")
    for number in range(4):
        store.add(variant(number))
    with pytest.raises(UnknownIncident, match=r"4 incidents begin with 'incident-'.*, \.\.\."):
        store.get("incident-")
    with pytest.raises(UnknownIncident, match="the newest is incident-00003"):
        store.get("zzz")
    with pytest.raises(UnknownIncident):
        store.get("")


@pytest.mark.parametrize("text", ["\x1b[2Jevil\n", "\udc80\udcff", "\U0001f4a5", "a\0b"])
def test_hostile_names_come_back_and_are_found(path: Path, text: str) -> None:
    store = IncidentStore(path)
    incident = EVICTION_WON | {"evicted": [{"pod": text, "grace_s": 0, "rank": 1}], "summary": text}
    store.add(incident)
    assert store.get("latest") == incident
    assert len(store.list(pod=text)) == 1


def test_the_id_of_a_unit_with_the_longest_name_fits_into_that_of_a_file(path: Path) -> None:
    store, long = IncidentStore(path), "20260131-031209.412-" + "ä" * 250
    store.add(EVICTION_WON | {"id": long})
    assert store.get(long)["id"] == store.get("20260131")["id"] == store.list()[0]["id"] == long


def test_what_is_too_large_is_refused(path: Path) -> None:
    store = IncidentStore(path, max_bytes=MIB)
    store.add(OWN_LIMIT)
    large = EVICTION_WON | {"steps": ["x" * 64] * 1000}
    with pytest.raises(MonitorError, match="too large to be stored"):
        store.add(large)
    store.add(EVICTION_WON)
    assert store.stored == 2


# bounds
def own_limit(number: int, pod: str) -> dict[str, Any]:
    victim = {**OWN_LIMIT["oom_victims"][0], "pod": pod}
    return variant(number, OWN_LIMIT, oom_victims=[victim], invoker={**OWN_LIMIT["invoker"], "pod": pod})


def test_the_number_kept_is_bounded_and_the_oldest_goes(path: Path) -> None:
    store = IncidentStore(path, keep=5)
    for number in range(12):
        store.add(variant(number, start=f"2026-01-31T00:00:{59 - number}Z"))  # a clock that runs backwards
    assert kept(store) == {7, 8, 9, 10, 11}
    store.add(variant(7, verdict="relieved"))  # a known one replaces no other
    assert store.stored == 5


def test_a_pod_that_has_incidents_all_day_leaves_others_theirs(path: Path) -> None:
    IncidentStore(path, keep=6).add(own_limit(0, "shop/db"))
    store = IncidentStore(path, keep=6)  # another helper
    for number in range(1, 9):
        store.add(own_limit(2 * number, "shop/web"))
        store.add(own_limit(2 * number + 1, f"user-1000/u{number}.scope"))  # a user's units are the user's
    assert len(kept(store)) == 6
    assert {0, 16, 17} <= kept(store)


def test_a_tenant_that_makes_pod_after_pod_leaves_others_theirs(path: Path) -> None:
    store = IncidentStore(path, keep=6)
    for number in range(30):
        store.add(own_limit(number, "prod/db-0" if number < 2 else f"jobs/job-{number}"))
    assert kept(store) == {0, 1, 26, 27, 28, 29}


def test_the_bytes_are_bounded(path: Path) -> None:
    noise = random.Random(7)
    store = IncidentStore(path, max_bytes=MIB)
    for number in range(300):
        steps = [{"t_ms": n, "what": "x", "n": noise.random()} for n in range(noise.choice((1, 20, 60, 400)))]
        store.add(variant(number, steps=steps))
        assert sum(one.stat().st_size for one in path.iterdir()) <= MIB
    found = kept(store)
    assert found == set(range(300 - len(found), 300))
    assert sum(len(json.dumps(each)) for each in store.all()) > MIB / 2


# killed
WRITER = """
import os, sys
from pathlib import Path
from tests.side.incident_samples import variant
from monitor.side.incidents import IncidentStore
store = IncidentStore(Path(sys.argv[1]))
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    store.add(variant(number))
    os.write(1, b"%d\\n" % number)
"""


def writer(path: Path, first: int, end: int) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", WRITER, str(path), str(first), str(end)]
    return subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)


def test_killed_at_any_point_it_loses_at_most_the_incident_being_written(path: Path) -> None:
    chance, done = random.Random(3), 0
    for _ in range(10):
        process = writer(path, done, done + 1000)
        for _ in range(chance.randint(1, 12)):
            done = int(process.stdout.readline()) + 1
        process.kill()
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert err == b""
        done = max([done, *(int(line) + 1 for line in out.split())])
        reader = IncidentReader(path)
        assert set(range(done)) <= kept(reader) <= set(range(done + 1))
        assert not reader.unreadable
        done = len(kept(reader))


def test_readers_see_whole_incidents_while_others_are_written_and_deleted(path: Path) -> None:
    process = writer(path, 0, 150)
    while process.poll() is None:
        reader, names = IncidentReader(path), sorted(path.glob("*.json"))
        assert all(one["verdict"] == "eviction_won" for one in reader.list())
        if len(names) > 20:
            names[0].unlink()
            names[1].unlink()
        assert not reader.unreadable
    assert process.communicate()[1] == b""


# damaged, full, read-only, gone, of others
NO_INCIDENTS = ({"end": "now"}, {"flags": None}, {"domain": 7}, {"evicted": None}, {"evicted": [1]}, {"start": "-"})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        *(json.dumps(OWN_LIMIT | n).encode() for n in NO_INCIDENTS),
    ],
)
def test_a_damaged_incident_costs_itself(path: Path, content: bytes) -> None:
    filled(path)
    (path / f"{OWN_LIMIT['id']}.json").write_bytes(content)
    reader = IncidentReader(path)
    assert [one["id"] for one in reader.list()] == [DURING_GRACE["id"], EVICTION_WON["id"]]
    assert reader.unreadable == 1
    assert reader.list(pod="x/y") == []
    with pytest.raises(MonitorError, match="is damaged"):
        reader.get(OWN_LIMIT["id"])
    store = IncidentStore(path, keep=3)
    store.add(variant(1))
    assert store.stored == 3


def test_readers_of_nothing(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "incidents"):
        reader = IncidentReader(path)
        assert (reader.list(), list(reader.all())) == ([], [])
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk_is_an_error_and_harms_nothing(mounts: Mounts) -> None:
    directory = mounts.tmpfs("full", 2 * MIB)
    directory.chmod(0o750)
    store, ballast = IncidentStore(directory / "incidents"), directory / "ballast"
    store.add(EVICTION_WON)
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    with pytest.raises(OSError) as caught:
        store.add(EVICTION_WON | {"verdict": "relieved"})
    assert caught.value.errno == errno.ENOSPC
    assert list(store.all()) == [EVICTION_WON]
    ballast.unlink()
    store.add(OWN_LIMIT)
    assert store.stored == 2
    assert len(os.listdir(store.path)) == 2


def test_a_store_that_was_removed_is_begun_anew(path: Path) -> None:
    store = filled(path)
    shutil.rmtree(path.parent)
    store.add(OWN_LIMIT)
    assert [found["id"] for found in store.list()] == [OWN_LIMIT["id"]]
    assert store.stored == 1


def test_a_link_is_replaced_and_what_it_leads_to_stays(path: Path, tmp_path: Path) -> None:
    path.mkdir(parents=True)
    target = tmp_path / "precious"
    target.write_text("precious")
    (path / f"{OWN_LIMIT['id']}.json").symlink_to(target)
    IncidentStore(path).add(OWN_LIMIT)
    assert target.read_text() == "precious"
    assert IncidentReader(path).get("latest") == OWN_LIMIT


def test_what_is_no_directory_is_an_error_and_what_is_no_file_is_left_out(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with pytest.raises(FileExistsError):
        IncidentStore(path).add(OWN_LIMIT)
    path.unlink()
    (path / "fifo.json").mkdir(parents=True)
    reader = IncidentReader(path)
    assert (reader.list(), reader.unreadable) == ([], 1)


def test_a_clock_that_was_set_back_costs_no_new_incident(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = IncidentStore(path, keep=3)
    for number in range(3):
        store.add({**OWN_LIMIT, "id": f"old-{number}"})
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    later = IncidentStore(path, keep=3)
    for number in range(3):
        later.add({**OWN_LIMIT, "id": f"new-{number}"})
    assert [one["id"] for one in later.all()] == ["new-0", "new-1", "new-2"]


def test_what_a_killed_writer_left_goes(path: Path) -> None:
    IncidentStore(path).add(OWN_LIMIT)
    (path / ".20260101.tmp").touch()
    IncidentStore(path).add(OWN_LIMIT)
    assert [one.name for one in path.iterdir()] == [f"{OWN_LIMIT['id']}.json"]

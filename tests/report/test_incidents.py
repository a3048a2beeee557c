"""The incident store on real files: what goes in comes out, bounded, whatever is killed, full or damaged."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from filesystems import Mounts
from incident_samples import DURING_GRACE, EVICTION_WON, MIB, NOW, OWN_LIMIT, SAMPLES, variant

from monitor.errors import MonitorError
from monitor.race.incident import Incident
from monitor.report import incident_file
from monitor.report.incident_reader import IncidentReader, UnknownIncident
from monitor.report.incident_salvage import damaged_files, set_aside
from monitor.report.incidents import MIN_BYTES, IncidentStore
from monitor.report.log import Log
from monitor.report.worker import Worker

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60.0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and give files away")


_NOWHERE = os.open(os.devnull, os.O_WRONLY)


def unix(text: str) -> float:
    return incident_file.unix_time(text)


def silent() -> Log:
    return Log(fd=_NOWHERE)


def store_at(path: Path, **options: Any) -> IncidentStore:
    options = {"log": silent(), "clock": lambda: NOW, "wait_s": 0.2} | options
    return IncidentStore(path, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "incidents.db"


#: Where a flush costs nothing: what the disk does is not what most of these are about.
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def fast() -> Iterator[Path]:
    """As `path`, for those that write much."""
    with tempfile.TemporaryDirectory(prefix="outrace-test-", dir=FAST) as directory:
        yield Path(directory) / "incidents.db"


@pytest.fixture
def mounts() -> Iterator[Mounts]:
    with Mounts() as made:
        yield made


def intact(path: Path) -> list[str]:
    """The ids in the file, which SQLite finds in order."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [key for (key,) in connection.execute("SELECT id FROM incidents ORDER BY seq")]


def attempt(store: IncidentStore, incident: dict[str, Any]) -> OSError | None:
    """The error of an add, or None."""
    try:
        store.add(incident)
    except OSError as error:
        return error
    return None


def fill(ballast: Path, spare: int = 0) -> None:
    """Take all that is left of the disk but ``spare`` pages."""
    with open(ballast, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            file.truncate(max(0, file.tell() - spare * 4096))


def size_on_disk(path: Path) -> int:
    total = 0
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        try:
            total += (path.parent / name).stat().st_size
        except FileNotFoundError:
            continue
    return total


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
        assert reader.get("latest") == OWN_LIMIT
        assert reader.get("2026-01-31T04") == DURING_GRACE
        assert reader.counts() == {"eviction_won": 1, "oom_during_grace": 1, "own_limit": 1}
    assert (store.stored, store.failing, store.problem, store.lost) == (3, False, "", 0)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["verdict"])
def test_incidents_as_they_are_judged_are_stored_and_come_back_the_same(path: Path, sample: dict[str, Any]) -> None:
    judged = Incident.from_json(sample)
    store = store_at(path)
    store.add(judged.to_json())
    assert Incident.from_json(store.get(judged.id)) == judged
    assert store.get(judged.id) == sample
    assert store.list() == [judged.to_json(steps=False)]


def test_a_later_version_takes_the_place_of_the_earlier(path: Path) -> None:
    store = store_at(path)
    for _ in range(3):
        store.add(EVICTION_WON)
    store.add(OWN_LIMIT)
    assert store.stored == 2
    later = EVICTION_WON | {"verdict": "oom_after_eviction", "flags": ["collateral"], "steps": []}
    store.add(later)
    assert store.stored == 2
    assert store.get(EVICTION_WON["id"]) == later
    assert store.list(flag="collateral", verdict="oom_after_eviction")[0]["id"] == EVICTION_WON["id"]
    assert store.list(verdict="eviction_won") == []


def test_filters(path: Path) -> None:
    store = store_at(path)
    for sample in SAMPLES:
        store.add(sample)
    first, second, third = (sample["id"] for sample in SAMPLES)

    def ids(**filters: Any) -> list[str]:
        return [found["id"] for found in store.list(**filters)]

    begin = incident_file.unix_time(DURING_GRACE["start"])
    assert ids(since=begin) == [third, second]
    assert ids(until=begin) == [second, first]
    assert ids(since=begin, until=begin) == [second]
    assert ids(verdict="own_limit") == [third]
    assert ids(flag="wrong_victim") == [second]
    assert ids(flag="wrong") == []
    assert ids(pod="shop/cart") == [first]
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
    row = incident_file.encode(incident)
    assert incident_file.decode(row["head"], row["steps"]) == incident
    assert "steps" not in incident_file.decode(row["head"])


@pytest.mark.parametrize("text", ["\x1b[2Jevil\n", "\udc80\udcff", "\U0001f4a5", "a\0b", "'; DROP TABLE incidents"])
def test_hostile_names_come_back_and_are_found(path: Path, text: str) -> None:
    store = store_at(path)
    incident = EVICTION_WON | {"evicted": [{"pod": text, "grace_s": 0, "rank": 1}], "summary": text}
    store.add(incident)
    assert store.get("latest") == incident
    if "\0" not in text and text.isascii():
        assert len(store.list(pod=text)) == 1


def test_an_infinite_forecast_is_stored_as_json_knows_it(path: Path) -> None:
    store = store_at(path)
    store.add(EVICTION_WON | {"forecast": {"oom_s": float("inf"), "more": [float("nan"), 1.5]}})
    assert store.get("latest")["forecast"] == {"oom_s": None, "more": [None, 1.5]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": ""}, "id and verdict must be text"),
        ({"id": "a\nb"}, "id and verdict must be text"),
        ({"start": "yesterday"}, "yesterday"),
        ({"start": "2026-01-31T03:12:09"}, "offset from UTC"),
        ({"end": True}, "not a time"),
        ({"facts": object()}, "not JSON serializable"),
        ({"steps": ["x" * 64 + str(n) for n in random.Random(1).sample(range(10**12), 60_000)]}, "too large"),
    ],
)
def test_what_cannot_be_stored_is_said_and_does_not_end_the_worker(
    path: Path, change: dict[str, Any], says: str
) -> None:
    store = store_at(path, max_bytes=MIN_BYTES)
    store.add(OWN_LIMIT)
    with pytest.raises(MonitorError, match=says):
        store.add(EVICTION_WON | change)
    store.record(EVICTION_WON | change)
    assert store.lost == 1
    store.record(EVICTION_WON)
    assert store.stored == 2


def test_an_incident_without_a_verdict_is_refused(path: Path) -> None:
    with pytest.raises(MonitorError, match="has no verdict"):
        store_at(path).add({k: v for k, v in EVICTION_WON.items() if k != "verdict"})


def test_readers_of_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    empty.touch()
    for path in (tmp_path / "incidents.db", tmp_path / "no" / "incidents.db", empty):
        reader = IncidentReader(path)
        assert (reader.list(), list(reader.all()), reader.counts()) == ([], [], {})
    assert sorted(os.listdir(tmp_path)) == ["empty.db"]


def test_sqlite_is_imported_with_the_first_incident_only() -> None:
    code = (
        "import sys; from pathlib import Path; from monitor.report.incidents import IncidentStore\n"
        "IncidentStore(Path('/nowhere/incidents.db')).prune()\n"
        "sys.exit('sqlite3' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)


# bounds


def test_old_incidents_go_by_the_time_they_were_stored(path: Path) -> None:
    """Not by the times in them: those were told by a wall clock that may have been wrong."""
    now = NOW
    store = store_at(path, max_age_s=3600.0, clock=lambda: now)
    for number in range(5):
        now = NOW + 600 * number
        store.add(variant(number, start=-1e9, end=-1e9))
    assert store.stored == 5
    assert store.prune(NOW + 3600 + 700) == 2
    assert store.stored == 3
    now = NOW + 3600 + 2300
    store.add(variant(9, start=4e9, end=4e9))
    assert sorted(found["id"] for found in store.list()) == ["incident-00004", "incident-00009"]
    assert store.prune(NOW + 10**6) == 2
    assert store.prune(NOW + 10**6) == 0
    assert store_at(path.parent / "none.db").prune() == 0
    assert not (path.parent / "none.db").exists()


def test_what_was_stored_while_the_clock_was_behind_is_not_old_when_it_is_right(path: Path) -> None:
    store_at(path, clock=lambda: NOW).add(variant(1))
    store_at(path, clock=lambda: 0.0).add(variant(2))  # a machine that begins in 1970
    now = NOW + 60
    store = store_at(path, clock=lambda: now)
    store.add(variant(3))
    assert store.stored == 3
    assert store.prune(NOW + 31 * 86400) == 3


def test_setting_the_clock_ages_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = IncidentStore(path, log=silent())
    store.add(variant(1))
    far = time.time() + 365 * 86400
    monkeypatch.setattr(time, "time", lambda: far)
    store.add(variant(2))
    assert store.stored == 2


def test_the_number_kept_is_bounded_whatever_the_clock_says(path: Path) -> None:
    store = store_at(path, keep=5, max_age_s=1e12)
    for number in range(12):
        store.add(variant(number, start=float(-number), end=0.0))  # a clock that runs backwards
    assert [found["id"] for found in store.list()] == [f"incident-{n:05d}" for n in range(7, 12)]
    store.add(variant(7, verdict="relieved"))  # one that is known takes nobody's place
    assert store.stored == 5


def test_the_size_on_disk_is_bounded_over_thousands_of_incidents(fast: Path) -> None:
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
        for number in range(2500):
            steps = [{"t_ms": n, "what": "x", "n": noise.random()} for n in range(noise.choice((1, 20, 60, 400)))]
            store.add(variant(number, steps=steps))
            largest = max(largest, size_on_disk(fast))
    finally:
        ended.set()
        sampler.join()
    assert MIN_BYTES / 2 < largest <= MIN_BYTES
    kept = intact(fast)
    # The newest, without a gap, and not just a few: a third of the store at least is in use.
    assert kept == [f"incident-{n:05d}" for n in range(2500 - len(kept), 2500)]
    assert sum(len(json.dumps(each)) for each in store.all()) > MIN_BYTES / 3
    # Once they are too old, the disk gets its space back.
    store.prune(NOW + 365 * 86400)
    assert size_on_disk(fast) <= 3 * MIB


def test_free_pages_are_given_back(fast: Path) -> None:
    noise = random.Random(8)
    store = store_at(fast, max_bytes=32 * MIB)
    for number in range(60):
        store.add(variant(number, steps=[noise.random() for _ in range(12_000)]))
    assert size_on_disk(fast) > 6 * MIB
    store.prune(NOW + 365 * 86400)
    assert size_on_disk(fast) < 3 * MIB
    assert intact(fast) == []


# killed

WRITER = """
import json, os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[4]]
from incident_samples import NOW, variant
from monitor.report.incidents import IncidentStore
from monitor.report.log import Log
store = IncidentStore(Path(sys.argv[1]), log=Log(), clock=lambda: NOW, max_bytes=1 << 20)
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    store.add(variant(number))
    os.write(1, b"%d\\n" % number)
"""


def writer(path: Path, first: int, end: int, code: str = WRITER) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(first), str(end), str(Path(__file__).parent)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_killed_at_any_point_it_loses_at_most_the_incident_being_written(path: Path) -> None:
    chance = random.Random(3)
    done = 0
    for _ in range(20):
        process = writer(path, done, done + 1000)
        assert process.stdout is not None
        for _ in range(chance.randint(1, 12)):
            done = int(process.stdout.readline()) + 1
        for _ in range(chance.randint(0, 3000)):  # somewhere within an add
            pass
        process.kill()
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert err == b""
        done = max([done, *(int(line) + 1 for line in out.split())])
        found = {each["id"] for each in IncidentReader(path).all()}
        expected = {f"incident-{n:05d}" for n in range(done)}
        assert expected <= found <= expected | {f"incident-{done:05d}"}
        done = len(found)
    store_at(path).add(variant(done))
    assert intact(path) == [f"incident-{n:05d}" for n in range(done + 1)]
    assert damaged_files(path) == []
    assert sorted(os.listdir(path.parent)) == ["incidents.db"]


#: Ends itself with SIGKILL at the n-th system call that changes a name, while it sets a damaged file aside.
SUICIDE = """
import os, signal, sys
count = int(sys.argv[2])
def hook(event, arguments):
    global count
    if event in ("os.rename", "os.remove", "shutil.copyfile") or (event == "open" and ".graft" in str(arguments[0])):
        count -= 1
        if count < 0:
            os.kill(os.getpid(), signal.SIGKILL)
from pathlib import Path
sys.path[:0] = [sys.argv[4]]
from incident_samples import NOW, variant
from monitor.report.incidents import IncidentStore
from monitor.report.log import Log
store = IncidentStore(Path(sys.argv[1]), log=Log(), clock=lambda: NOW)
sys.addaudithook(hook)
store.add(variant(99))
"""


@pytest.mark.parametrize("damage", ["header", "middle"])
def test_killed_while_a_damaged_file_is_set_aside(tmp_path: Path, damage: str) -> None:
    original = filled(tmp_path / "original.db", 20)
    start = 0 if damage == "header" else len(original) // 2
    broken = original[:start] + b"\xa5" * 4096 + original[start + 4096 :]
    for step in range(60):
        path = tmp_path / f"state{step}" / "incidents.db"
        path.parent.mkdir()
        path.write_bytes(broken)
        process = writer(path, step, 0, SUICIDE)
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode in (0, -signal.SIGKILL), err.decode()
        store = store_at(path)
        store.add(variant(100))
        found = intact(path)
        assert "incident-00100" in found
        assert len(found) >= 15
        assert 1 <= len(damaged_files(path)) <= 2
        assert [name for name in os.listdir(path.parent) if ".damaged-" not in name] == ["incidents.db"]
        if process.returncode == 0:
            break
    assert step > 3, "it was killed at no point of it"
    assert process.returncode == 0


# full, read-only, locked, gone


@needs_root
def test_a_full_disk_is_an_error_and_harms_nothing(mounts: Mounts) -> None:
    directory = mounts.tmpfs("full", 2 * MIB)
    directory.chmod(0o750)
    path, ballast = directory / "incidents.db", directory / "ballast"
    store = store_at(path)
    store.add(variant(0))
    number = 1
    for spare in range(40):  # pages left: none, then as many as each step of an add takes
        fill(ballast, spare)
        error = attempt(store, variant(number))
        if error is None:
            break
        assert error.errno == errno.ENOSPC, error
        assert error.filename == str(path)
        assert store.failing
        assert "no space left" in store.problem
        ballast.unlink()
        store.add(variant(number))
        number += 1
        assert (store.failing, store.problem) == (False, "")
    assert number > 3, "the disk was never full"
    assert intact(path) == [f"incident-{n:05d}" for n in range(number + 1)]
    assert store.set_aside == 0


@needs_root
def test_a_worker_stores_it_once_there_is_room(mounts: Mounts) -> None:
    directory = mounts.tmpfs("full", 1 * MIB)
    directory.chmod(0o750)
    ballast = directory / "ballast"
    fill(ballast)
    store = store_at(directory / "incidents.db")
    heard, stored = threading.Event(), threading.Event()
    worker = Worker("incidents", retry_s=0.01, on_error=lambda _: heard.set(), on_recovered=stored.set)
    worker.submit(lambda: store.record(EVICTION_WON))
    worker.submit(lambda: store.record({"id": "nothing else"}))
    worker.submit(lambda: store.record(OWN_LIMIT))
    assert heard.wait(TIMEOUT_S)
    ballast.unlink()
    assert stored.wait(TIMEOUT_S)
    assert worker.close(TIMEOUT_S)
    assert (worker.dropped, worker.failing, store.lost, store.stored) == (0, None, 1, 2)
    assert {found["id"] for found in store.list()} == {EVICTION_WON["id"], OWN_LIMIT["id"]}


@needs_root
@pytest.mark.parametrize("log_left", [False, True])
def test_a_read_only_disk_can_be_read_and_not_written(mounts: Mounts, log_left: bool) -> None:
    directory = mounts.tmpfs("frozen", 4 * MIB)
    directory.chmod(0o750)
    path = directory / "incidents.db"
    store_at(path).add(EVICTION_WON)
    if log_left:  # as after kill -9: the last incident is in the log only
        scratch = directory / "scratch.db"
        shutil.copyfile(path, scratch)
        with closing(incident_file.connect(scratch, write=True, timeout_s=0)) as connection:
            with incident_file.transaction(connection):
                incident_file.upsert(connection, incident_file.encode(OWN_LIMIT))
            shutil.copyfile(incident_file.log_of(scratch), incident_file.log_of(path))
    subprocess.run(["mount", "-o", "remount,ro", directory], check=True)
    before = sorted(os.listdir(directory))
    reader = IncidentReader(path)
    assert len(reader.list()) == 1 + log_left
    assert reader.get(EVICTION_WON["id"]) == EVICTION_WON
    store = store_at(path)
    with pytest.raises(OSError) as caught:
        store.add(DURING_GRACE)
    assert caught.value.errno == errno.EROFS
    assert store.failing
    assert store.set_aside == 0
    assert sorted(os.listdir(directory)) == before
    subprocess.run(["mount", "-o", "remount,rw", directory], check=True)
    store.add(DURING_GRACE)
    assert store.stored == 2 + log_left


LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(sys.argv[2])
connection.execute("SELECT count(*) FROM incidents").fetchone()
print("locked", flush=True)
sys.stdin.readline()
"""


def locker(path: Path, statement: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(path), statement], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_locked_by_another_process(path: Path) -> None:
    store = store_at(path)
    store.add(EVICTION_WON)
    process = locker(path, "BEGIN EXCLUSIVE")
    try:
        with pytest.raises(OSError, match="locked by another process") as caught:
            store.add(OWN_LIMIT)
        assert caught.value.errno == errno.EBUSY
        assert store.failing
    finally:
        process.communicate("\n", timeout=TIMEOUT_S)
    store.add(OWN_LIMIT)
    assert not store.failing
    assert len(intact(path)) == 2


def test_a_reader_that_never_ends_costs_a_bounded_log(path: Path) -> None:
    noise = random.Random(9)
    store = store_at(path, max_bytes=MIN_BYTES)
    store.add(variant(0))
    process = locker(path, "BEGIN")
    refused = 0
    try:
        for number in range(1, 200):
            error = attempt(store, variant(number, steps=[noise.random() for _ in range(900)]))
            if error is not None:
                assert error.errno == errno.EBUSY
                assert "a process that reads it" in store.problem
                refused += 1
                if refused == 3:
                    break
            assert size_on_disk(path) <= MIN_BYTES + 65536
    finally:
        process.communicate("\n", timeout=TIMEOUT_S)
    assert refused == 3
    store.add(variant(500))
    assert "incident-00500" in intact(path)
    assert size_on_disk(path) <= MIN_BYTES


def test_a_store_that_was_removed_is_begun_anew(path: Path) -> None:
    store = store_at(path)
    store.add(EVICTION_WON)
    shutil.rmtree(path.parent)
    store.add(OWN_LIMIT)
    assert [found["id"] for found in store.list()] == [OWN_LIMIT["id"]]
    assert (store.stored, store.set_aside) == (1, 0)


READER = """
import sys
from pathlib import Path
from monitor.report.incident_reader import IncidentReader
reader = IncidentReader(Path(sys.argv[1]))
seen, last = 0, int(sys.argv[2])
while True:
    found = reader.list()
    assert len(found) >= seen, (len(found), seen)
    seen = len(found)
    ids = [each["id"] for each in found]
    assert ids == [f"incident-{n:05d}" for n in range(len(ids) - 1, -1, -1)], ids
    if found:
        assert reader.get(ids[0])["steps"]
    if seen > last:
        break
assert not reader.unreadable
"""


def test_readers_and_a_writer_at_the_same_time(path: Path) -> None:
    last = 150
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(path), str(last)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    process = writer(path, 0, last + 1)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (0, b"")
    for reader in readers:
        _, err = reader.communicate(timeout=TIMEOUT_S)
        assert (reader.returncode, err) == (0, b"")
    assert len(intact(path)) == last + 1


# what must not be written to


def refused(path: Path, says: str) -> None:
    store = store_at(path)
    with pytest.raises(MonitorError, match=says):
        store.add(EVICTION_WON)
    assert store.failing
    assert store.set_aside == 0
    store.record(EVICTION_WON)  # does not end the worker
    assert store.lost == 1


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_a_symlink_is_refused(path: Path, tmp_path: Path, suffix: str) -> None:
    path.parent.mkdir()
    target = tmp_path / "precious"
    target.write_text("precious")
    Path(f"{path}{suffix}").symlink_to(target)
    refused(path, "is a symbolic link; remove it")
    assert target.read_text() == "precious"


def test_a_hard_link_is_refused(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    (tmp_path / "precious").touch()
    path.hardlink_to(tmp_path / "precious")
    refused(path, "hard link")


def test_a_directory_is_refused_and_reading_it_says_so(path: Path) -> None:
    path.mkdir(parents=True)
    refused(path, "not a regular file")
    with pytest.raises(OSError, match="not a regular file"):
        IncidentReader(path).list()


@needs_root
def test_a_foreign_file_or_directory_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    os.chown(path, 65534, 65534)
    refused(path, "belongs to user 65534")
    path.unlink()
    os.chown(path.parent, 65534, 65534)
    refused(path, "belongs to user 65534")


def test_a_directory_others_may_write_in_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o777)
    refused(path, "can be written by others; chmod go-w")


# other versions


def test_a_newer_version_is_refused_and_left_alone(path: Path) -> None:
    store_at(path).add(EVICTION_WON)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    refused(path, r"newer outrace \(schema 99, this one knows 2\); use that version, or move the file away")
    with pytest.raises(MonitorError, match="newer outrace"):
        IncidentReader(path).list()
    assert path.read_bytes() == before
    assert damaged_files(path) == []


def test_an_older_version_is_migrated_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_at(path).add(EVICTION_WON)
    step = (
        "ALTER TABLE incidents ADD COLUMN later TEXT NOT NULL DEFAULT 'x'",
        "CREATE INDEX later ON incidents (later)",
    )
    first = incident_file.MIGRATIONS
    with monkeypatch.context() as patch, closing(sqlite3.connect(path, isolation_level=None)) as connection:
        patch.setattr(incident_file, "MIGRATIONS", (*first, (step[0], "CREATE TABLE broken (")))
        with pytest.raises(sqlite3.OperationalError):
            incident_file.prepare(connection)
    assert store_at(path).get("latest") == EVICTION_WON  # still of the first version
    monkeypatch.setattr(incident_file, "MIGRATIONS", (*first, step))
    assert IncidentReader(path).get("latest") == EVICTION_WON  # a reader changes nothing
    store = store_at(path)
    store.add(OWN_LIMIT)
    assert (store.stored, store.set_aside) == (2, 0)
    assert store.get(EVICTION_WON["id"]) == EVICTION_WON
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(first) + 1,)
        assert connection.execute("SELECT later FROM incidents").fetchall() == [("x",), ("x",)]


def test_a_file_of_the_first_version_is_brought_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, closing(sqlite3.connect(":memory:")) as before:
        patch.setattr(incident_file, "MIGRATIONS", incident_file.MIGRATIONS[:1])
        incident_file.prepare(before)
        incident_file.upsert(before, incident_file.encode(EVICTION_WON))
        before.commit()
        path.parent.mkdir(mode=0o750)
        with closing(sqlite3.connect(path)) as copy:
            before.backup(copy)
    assert IncidentReader(path).get("latest") == EVICTION_WON
    store = store_at(path)
    store.add(OWN_LIMIT)
    assert (store.stored, store.set_aside) == (2, 0)
    assert store.prune(unix(EVICTION_WON["end"]) + 30 * 86400 + 1) == 1  # it goes by its end


# damage


def filled(path: Path, count: int) -> bytes:
    store = store_at(path)
    noise = random.Random(5)
    for number in range(count):
        store.add(variant(number, steps=[{"t_ms": n, "n": noise.random()} for n in range(noise.choice((5, 100, 600)))]))
    return path.read_bytes()


class Whole:
    """A file of 40 incidents, and what is in it."""

    def __init__(self, content: bytes, known: dict[str, Any]) -> None:
        self.content, self.known = content, known


@pytest.fixture(scope="module")
def whole() -> Whole:
    with tempfile.TemporaryDirectory(dir=FAST) as directory:
        path = Path(directory) / "incidents.db"
        content = filled(path, 40)
        assert len(content) > 40 * 4096
        return Whole(content, {each["id"]: each for each in IncidentReader(path).all()})


def check_mended(path: Path, known: dict[str, Any], *, loss_is_said: bool = True) -> int:
    """Storing goes on in ``path``, which may be damaged; how many of the ``known`` incidents are left."""
    with contextlib.suppress(MonitorError):  # all that a reader may say of it
        for each in IncidentReader(path).list():
            assert {**each, "steps": known[each["id"]]["steps"]} == known[each["id"]]
    store = store_at(path)
    store.add(OWN_LIMIT)
    assert not store.failing
    found = {each["id"]: each for each in store.all()}
    assert store.unreadable == 0
    assert found.pop(OWN_LIMIT["id"]) == OWN_LIMIT
    assert found == {key: known[key] for key in found}, "an incident was changed"
    assert set(intact(path)) == {*found, OWN_LIMIT["id"]}
    assert len(damaged_files(path)) == store.set_aside
    if loss_is_said and len(found) < len(known):
        assert store.set_aside == 1
    return len(found)


KINDS = ("bytes", "page", "half a page", "zeros", "truncated", "longer")


@given(kind=st.sampled_from(KINDS), place=st.integers(0, 2**20), seed=st.integers(0, 2**32))
@settings(max_examples=100)
def test_damaged_bytes_anywhere(whole: Whole, kind: str, place: int, seed: int) -> None:
    content, known = whole.content, whole.known
    at = place % len(content)
    junk = random.Random(seed).randbytes(4096)
    page = at // 4096 * 4096
    damaged = {
        "bytes": content[:at] + junk[:16] + content[at + 16 :],
        "page": content[:page] + junk + content[page + 4096 :],
        "half a page": content[: page + 2048] + junk[:2048] + content[page + 4096 :],
        "zeros": content[:page] + bytes(4096) + content[page + 4096 :],
        "truncated": content[: at or 1],  # one without a byte is a new one
        "longer": content + junk[: at % 4096],
    }[kind]
    with tempfile.TemporaryDirectory(dir=FAST) as directory:
        path = Path(directory) / "incidents.db"
        path.write_bytes(damaged)
        check_mended(path, known)


def test_one_damaged_page_costs_only_what_was_on_it(whole: Whole, fast: Path) -> None:
    content, known = whole.content, whole.known
    kept = []
    for page in range(len(content) // 4096):
        path = fast.parent / f"{page}" / "incidents.db"
        path.parent.mkdir()
        path.write_bytes(content[: page * 4096] + b"\xff" * 4096 + content[(page + 1) * 4096 :])
        kept.append(check_mended(path, known))
    print("incidents kept of", len(known), "with one damaged page each:", sorted(kept))
    assert kept[0] == len(known), "the first page is the same in every file"
    # Only the inner page that leads to all the others cannot be made up for.
    assert sum(count < len(known) - 12 for count in kept) <= 1


@pytest.mark.parametrize("junk", [b"x", b"garbage" * 1000, bytes(8192), b"SQLite format 3\0" + bytes(84)])
def test_garbage_is_set_aside(path: Path, junk: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(junk)
    with pytest.raises(MonitorError, match=r"is damaged: .*; the monitor sets the file aside"):
        IncidentReader(path).list()
    assert check_mended(path, {}) == 0
    (aside,) = damaged_files(path)
    assert aside.read_bytes() == junk
    assert aside.name == "incidents.db.damaged-20260131T060000Z"


def test_a_database_of_somebody_else_is_set_aside_whole(path: Path) -> None:
    path.parent.mkdir()
    for statements in (
        ["CREATE TABLE mine (x)", "INSERT INTO mine VALUES (42)"],
        [
            "CREATE TABLE incidents (id TEXT)",
            f"PRAGMA application_id = {incident_file.APPLICATION_ID}",
            "PRAGMA user_version = 1",
        ],
    ):
        with closing(sqlite3.connect(path)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()
        store = store_at(path)
        store.add(EVICTION_WON)
        assert store.set_aside == 1
        shutil.copyfile(damaged_files(path)[-1], path.parent / "copy.db")
        with closing(sqlite3.connect(path.parent / "copy.db")) as connection:
            assert connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (1,)
        path.unlink()


def test_a_damaged_log_loses_at_most_what_was_in_it(path: Path) -> None:
    store_at(path).add(EVICTION_WON)
    scratch = path.parent / "scratch.db"
    shutil.copyfile(path, scratch)
    with closing(incident_file.connect(scratch, write=True, timeout_s=0)) as connection:
        with incident_file.transaction(connection):
            incident_file.upsert(connection, incident_file.encode(DURING_GRACE))
        log = incident_file.log_of(scratch).read_bytes()
    for at in range(0, len(log), 997):
        incident_file.log_of(path).write_bytes(log[:at] + b"\xa5\xa5\xa5" + log[at + 3 :])
        copy = path.parent.parent / f"at{at}" / "incidents.db"
        shutil.copytree(path.parent, copy.parent)
        check_mended(copy, {each["id"]: each for each in (EVICTION_WON, DURING_GRACE)}, loss_is_said=False)
        assert store_at(copy).get(EVICTION_WON["id"]) == EVICTION_WON


def test_damaged_files_are_kept_three_deep_and_said_in_the_log(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    now = NOW
    store = store_at(path, log=Log(), clock=lambda: now)
    for number in range(6):
        store.add(variant(number))
        path.write_bytes(b"garbage %d" % number)
        now += number % 2  # two of them in the same second
    store.add(OWN_LIMIT)
    assert store.set_aside == 6
    assert [aside.read_bytes() for aside in damaged_files(path)] == [b"garbage 3", b"garbage 4", b"garbage 5"]
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 6
    assert "the incident store was damaged; a new one is begun" in lines[0]
    assert str(damaged_files(path)[-1]) in lines[-1]
    assert "saved=0" in lines[-1]


def test_damage_while_the_store_is_in_use_keeps_the_rest(path: Path) -> None:
    store = store_at(path)
    for number in range(30):
        store.add(variant(number))
    content = bytearray(path.read_bytes())
    at = content.rindex(incident_file.encode(variant(17))["head"][:64])
    content[at + 20] ^= 0xFF  # inside the compressed JSON, where SQLite sees nothing wrong
    path.write_bytes(content)
    reader = IncidentReader(path)
    assert len(reader.list()) == 29
    assert reader.unreadable == 1
    with pytest.raises(MonitorError, match=r"'incident-00017' in .* is damaged"):
        reader.get("incident-00017")
    store.add(variant(30))
    assert (store.set_aside, store.stored) == (1, 30)
    assert "incident-00017" not in intact(path)


@pytest.mark.parametrize("column", [b"eviction_won", b'["shop/cart"]'])
def test_a_damaged_column_is_made_again_from_the_incident(whole: Whole, path: Path, column: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(whole.content.replace(column, b"\xff" * len(column)))
    assert check_mended(path, whole.known) == len(whole.known)
    assert len(damaged_files(path)) == 1
    assert len(IncidentReader(path).list(pod="shop/cart", verdict="eviction_won")) == len(whole.known)


@pytest.mark.parametrize("header", [False, True])
def test_the_log_of_a_damaged_file_is_never_left_to_the_new_one(whole: Whole, path: Path, header: bool) -> None:
    path.parent.mkdir()
    scratch = path.parent / "scratch.db"
    scratch.write_bytes(whole.content)
    with closing(incident_file.connect(scratch, write=True, timeout_s=0)) as connection:
        with incident_file.transaction(connection):
            incident_file.upsert(connection, incident_file.encode(DURING_GRACE))
        log = incident_file.log_of(scratch).read_bytes()
    incident_file.log_of(path).write_bytes(log)
    at = 0 if header else len(whole.content) // 2
    path.write_bytes(whole.content[:at] + b"\xff" * 4096 + whole.content[at + 4096 :])
    known = whole.known | {DURING_GRACE["id"]: DURING_GRACE}
    copy = path.parent.parent / "copy" / path.name
    shutil.copytree(path.parent, copy.parent)
    # What was in the log only is saved with the rest: SQLite folds it in before anything else.
    assert check_mended(copy, known, loss_is_said=False) > len(whole.known) - 5
    assert store_at(copy).get(DURING_GRACE["id"]) == DURING_GRACE
    # Where it could not do that, the log goes with its file.
    aside = set_aside(path, NOW)
    assert incident_file.log_of(aside.path).read_bytes() == log
    assert not incident_file.log_of(path).exists()
    assert aside.saved > len(whole.known) - 5
    assert len(intact(path)) == aside.saved

"""The incident store when it is killed, the disk is full, others hold the file, or it must not be written to."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.side.incidents import reader as file
from monitor.side.incidents.reader import IncidentReader, damaged_files
from tests.filesystems import Mounts
from tests.live import TIMEOUT_S, environment
from tests.side.incident_samples import DURING_GRACE, EVICTION_WON, MIB, OWN_LIMIT, variant
from tests.side.stores import intact, killed_in_a_transaction, refused, size_on_disk, store_at

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and give files away")


def fill(ballast: Path, spare: int = 0) -> None:
    """Take all that is left of the disk but ``spare`` pages."""
    with open(ballast, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            file.truncate(max(0, file.tell() - spare * 4096))


# killed
WRITER = """
import json, os, sys
from pathlib import Path
from tests.side.incident_samples import NOW, variant
from monitor.side.incidents.store import IncidentStore
from monitor.side.export.log import Log
store = IncidentStore(Path(sys.argv[1]), log=Log(), clock=lambda: NOW, max_bytes=1 << 20, wait_s=60.0)
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    store.add(variant(number))
    os.write(1, b"%d\\n" % number)
"""


def writer(path: Path, first: int, end: int, code: str = WRITER) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(first), str(end)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # `communicate` does not see what `readline` has read ahead
    )


def test_killed_at_any_point_it_loses_at_most_the_incident_being_written(path: Path) -> None:
    chance = random.Random(3)
    done = 0
    for _ in range(20):
        process = writer(path, done, done + 1000)
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
    assert sorted(os.listdir(path.parent)) == ["incidents.db", "incidents.db-journal"]


#: Ends itself with SIGKILL at the n-th system call that changes a name, while it renames a damaged file.
SUICIDE = """
import os, signal, sys
count = int(sys.argv[2])
def hook(event, arguments):
    global count
    if event in ("os.rename", "os.remove", "sqlite3.connect"):
        count -= 1
        if count < 0:
            os.kill(os.getpid(), signal.SIGKILL)
from pathlib import Path
from tests.side.incident_samples import NOW, variant
from monitor.side.incidents.store import IncidentStore
from monitor.side.export.log import Log
store = IncidentStore(Path(sys.argv[1]), log=Log(), clock=lambda: NOW)
sys.addaudithook(hook)
store.add(variant(99))
"""


def test_killed_while_a_damaged_file_is_renamed(tmp_path: Path) -> None:
    for step in range(60):
        path = tmp_path / f"state{step}" / "incidents.db"
        path.parent.mkdir()
        path.write_bytes(b"garbage" * 1000)
        file.journal_of(path).write_bytes(b"more of it")
        process = writer(path, step, 0, SUICIDE)
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode in (0, -signal.SIGKILL), err.decode()
        store_at(path).add(variant(100))
        assert "incident-00100" in intact(path)
        assert [aside.read_bytes() for aside in damaged_files(path)] == [b"garbage" * 1000]
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
        problem = None
        try:
            store.add(variant(number))
        except OSError as error:
            problem = error.errno, error.filename
        if problem is None:
            break
        assert problem == (errno.ENOSPC, str(path))
        assert store.problem
        assert "no space left" in store.problem
        ballast.unlink()
        store.add(variant(number))
        number += 1
        assert store.problem == ""
    assert number > 3, "the disk was never full"
    assert intact(path) == [f"incident-{n:05d}" for n in range(number + 1)]
    assert damaged_files(path) == []


@needs_root
@pytest.mark.parametrize("killed", [False, True])
def test_a_read_only_disk_can_be_read_and_not_written(mounts: Mounts, killed: bool) -> None:
    directory = mounts.tmpfs("frozen", 4 * MIB)
    directory.chmod(0o750)
    path = directory / "incidents.db"
    if killed:
        killed_in_a_transaction(path)
    else:
        store_at(path).add(EVICTION_WON)
    subprocess.run(["mount", "-o", "remount,ro", directory], check=True)
    before = sorted(os.listdir(directory))
    assert list(IncidentReader(path).all()) == [EVICTION_WON]
    store = store_at(path)
    with pytest.raises(OSError) as caught:
        store.add(DURING_GRACE)
    assert caught.value.errno == errno.EROFS
    assert store.problem
    assert sorted(os.listdir(directory)) == before
    subprocess.run(["mount", "-o", "remount,rw", directory], check=True)
    store.add(DURING_GRACE)
    assert store.stored == 2
    assert damaged_files(path) == []


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
    assert process.stdout.readline() == "locked\n"
    return process


@pytest.mark.parametrize("statement", ["BEGIN EXCLUSIVE", "BEGIN"], ids=["writer", "reader that never ends"])
def test_locked_by_another_process(path: Path, statement: str) -> None:
    store = store_at(path)
    store.add(EVICTION_WON)
    size = size_on_disk(path)
    process = locker(path, statement)
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="locked by another process") as caught:
                store.add(OWN_LIMIT)
            assert caught.value.errno == errno.EBUSY
            assert store.problem
            assert size_on_disk(path) <= size + 64 * 1024
    finally:
        process.communicate("\n", timeout=TIMEOUT_S)
    store.add(OWN_LIMIT)
    assert not store.problem
    assert intact(path) == [EVICTION_WON["id"], OWN_LIMIT["id"]]


def test_a_store_that_was_removed_is_begun_anew(path: Path) -> None:
    store = store_at(path)
    store.add(EVICTION_WON)
    shutil.rmtree(path.parent)
    store.add(OWN_LIMIT)
    assert [found["id"] for found in store.list()] == [OWN_LIMIT["id"]]
    assert store.stored == 1
    assert damaged_files(path) == []


def test_a_store_that_is_being_made_is_empty_to_who_reads(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with file.opened(path, "rw", 0.0) as connection:
        file.prepare(connection)
        connection.execute("BEGIN IMMEDIATE")
        file.upsert(connection, file.encode(EVICTION_WON) | {"stored": 1})
        assert IncidentReader(path).list() == []
        connection.execute("COMMIT")
    assert len(IncidentReader(path).list()) == 1


READER = """
import sys
from pathlib import Path
from monitor.side.incidents.reader import IncidentReader
reader = IncidentReader(Path(sys.argv[1]), wait_s=60.0)
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
            [sys.executable, "-c", READER, str(path), str(last)], env=environment(), stderr=subprocess.PIPE
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


@pytest.mark.parametrize("suffix", ["", "-journal"])
@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])
def test_a_link_is_refused(path: Path, tmp_path: Path, suffix: str, make: Callable[[Path, Path], None]) -> None:
    path.parent.mkdir()
    target = tmp_path / "precious"
    target.write_text("precious")
    make(Path(f"{path}{suffix}"), target)
    refused(path, r"not a regular file of ours, or has a second name \(a link\); remove it")
    assert target.read_text() == "precious"


@needs_root
def test_a_foreign_file_or_directory_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    refused(path, "not a regular file")
    with pytest.raises(OSError, match="not a regular file"):
        IncidentReader(path).list()
    path.rmdir()
    path.touch()
    os.chown(path, 65534, 65534)
    refused(path, "not a regular file of ours")

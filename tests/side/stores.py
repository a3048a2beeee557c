"""Incident stores for tests, and disks for them."""

import os
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from monitor.errors import MonitorError
from monitor.side.incidents import reader as file
from monitor.side.incidents.reader import damaged_files
from monitor.side.incidents.store import IncidentStore
from tests.log_lines import LogLines
from tests.side.incident_samples import EVICTION_WON, NOW, variant


def store_at(path: Path, **options: Any) -> IncidentStore:
    options = {"log": LogLines(), "clock": lambda: NOW, "wait_s": 0.2} | options
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


def intact(path: Path) -> list[str]:
    """The ids in the file, which SQLite finds in order."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [key for (key,) in connection.execute("SELECT id FROM incidents ORDER BY seq")]


def size_on_disk(path: Path) -> int:
    total = 0
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        try:
            total += (path.parent / name).stat().st_size
        except FileNotFoundError:
            continue
    return total


# what must not be written to
def refused(path: Path, expected: str) -> None:
    store = store_at(path)
    with pytest.raises(MonitorError, match=expected):
        store.add(EVICTION_WON)
    assert store.problem
    assert damaged_files(path) == []
    store.record(EVICTION_WON)  # does not end the worker
    assert store.lost == 1


# damage
def filled(path: Path, count: int) -> bytes:
    store = store_at(path)
    noise = random.Random(5)
    for number in range(count):
        store.add(variant(number, steps=[{"t_ms": n, "n": noise.random()} for n in range(noise.choice((5, 100, 600)))]))
    return path.read_bytes()


def killed_in_a_transaction(path: Path) -> None:
    """The file as a writer leaves it that is killed while it stores a second incident."""
    store_at(path).add(EVICTION_WON)
    with file.opened(path, "rw", 0.0) as connection:
        connection.execute("PRAGMA cache_size = 1")  # so that pages are written before the end
        connection.execute("BEGIN IMMEDIATE")
        file.upsert(connection, file.encode(variant(1, steps=[random.random() for _ in range(30_000)])) | {"stored": 1})
        content, journal = path.read_bytes(), file.journal_of(path).read_bytes()
        connection.execute("ROLLBACK")
    assert journal
    path.write_bytes(content)
    file.journal_of(path).write_bytes(journal)

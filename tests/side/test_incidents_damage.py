"""The incident store with files of other versions and damaged ones."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from incident_samples import DURING_GRACE, EVICTION_WON, NOW, OWN_LIMIT, variant

from monitor.errors import MonitorError
from monitor.side.export.log import Log
from monitor.side.incidents import file
from monitor.side.incidents.reader import IncidentReader
from monitor.side.incidents.salvage import damaged_files, set_aside
from tests.side.stores import FAST, filled, intact, refused, store_at


def unix(text: str) -> float:
    return file.unix_time(text)


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
    first = file.MIGRATIONS
    with monkeypatch.context() as patch, closing(sqlite3.connect(path, isolation_level=None)) as connection:
        patch.setattr(file, "MIGRATIONS", (*first, (step[0], "CREATE TABLE broken (")))
        with pytest.raises(sqlite3.OperationalError):
            file.prepare(connection)
    assert store_at(path).get("latest") == EVICTION_WON  # still of the first version
    monkeypatch.setattr(file, "MIGRATIONS", (*first, step))
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
        patch.setattr(file, "MIGRATIONS", file.MIGRATIONS[:1])
        file.prepare(before)
        file.upsert(before, file.encode(EVICTION_WON))
        before.commit()
        path.parent.mkdir(mode=0o750)
        with closing(sqlite3.connect(path)) as copy:
            before.backup(copy)
    assert IncidentReader(path).get("latest") == EVICTION_WON
    store = store_at(path)
    store.add(OWN_LIMIT)
    assert (store.stored, store.set_aside) == (2, 0)
    assert store.prune(unix(EVICTION_WON["end"]) + 30 * 86400 + 1) == 1  # it goes by its end


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
@example(kind="bytes", place=3402, seed=0)  # in the schema: SQLite's message quotes bytes that are no UTF-8
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
            f"PRAGMA application_id = {file.APPLICATION_ID}",
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
    with closing(file.connect(scratch, write=True, timeout_s=0)) as connection:
        with file.transaction(connection):
            file.upsert(connection, file.encode(DURING_GRACE))
        log = file.log_of(scratch).read_bytes()
    for at in range(0, len(log), 997):
        file.log_of(path).write_bytes(log[:at] + b"\xa5\xa5\xa5" + log[at + 3 :])
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
    at = content.rindex(file.encode(variant(17))["head"][:64])
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
    with closing(file.connect(scratch, write=True, timeout_s=0)) as connection:
        with file.transaction(connection):
            file.upsert(connection, file.encode(DURING_GRACE))
        log = file.log_of(scratch).read_bytes()
    file.log_of(path).write_bytes(log)
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
    assert file.log_of(aside.path).read_bytes() == log
    assert not file.log_of(path).exists()
    assert aside.saved > len(whole.known) - 5
    assert len(intact(path)) == aside.saved

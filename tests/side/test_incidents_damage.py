"""The incident store with files of other versions and damaged ones."""

import contextlib
import random
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from monitor.errors import MonitorError
from monitor.side.export.log import Log
from monitor.side.incidents import reader as file
from monitor.side.incidents.reader import IncidentReader, damaged_files
from tests.side.incident_samples import EVICTION_WON, NOW, OWN_LIMIT, variant
from tests.side.stores import FAST, filled, intact, killed_in_a_transaction, refused, store_at


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


class Whole(NamedTuple):
    """A file of 40 incidents, and what is in it."""

    content: bytes
    known: dict[str, Any]


@pytest.fixture(scope="module")
def whole() -> Whole:
    with tempfile.TemporaryDirectory(dir=FAST) as directory:
        path = Path(directory) / "incidents.db"
        content = filled(path, 40)
        assert len(content) > 40 * 4096
        return Whole(content, {each["id"]: each for each in IncidentReader(path).all()})


def but_counters(content: bytes) -> bytes:
    """Without what SQLite counts in the header (https://sqlite.org/fileformat.html): changes, pages, version."""
    return content[:24] + content[32:92] + content[100:]


KINDS = ("bytes", "page", "half a page", "zeros", "truncated", "longer")


@given(kind=st.sampled_from(KINDS), place=st.integers(0, 2**20), seed=st.integers(0, 2**32))
@example(kind="bytes", place=3402, seed=0)  # in the schema: SQLite's message quotes bytes that are no UTF-8
@example(kind="bytes", place=24, seed=0)  # in the header: SQLite counts its changes there before it sees the damage
@settings(max_examples=100)
def test_damaged_bytes_anywhere(whole: Whole, kind: str, place: int, seed: int) -> None:
    """Storing goes on, in the file or in a new one; nothing that is shown was altered."""
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
        with contextlib.suppress(MonitorError):  # all that a reader may report of it
            for each in IncidentReader(path).list():
                assert {**each, "steps": known[each["id"]]["steps"]} == known[each["id"]]
        store = store_at(path)
        store.add(OWN_LIMIT)
        assert not store.problem
        found = {each["id"]: each for each in store.all()}
        assert found.pop(OWN_LIMIT["id"]) == OWN_LIMIT
        assert found == {key: known[key] for key in found}, "an incident was changed"
        if aside := damaged_files(path):
            assert [but_counters(each.read_bytes()) for each in aside] == [but_counters(damaged)]
            assert intact(path) == [OWN_LIMIT["id"]]
        else:
            assert len(found) + store.unreadable == len(known)


@pytest.mark.parametrize("junk", [b"x", b"garbage" * 1000, bytes(8192), b"SQLite format 3\0" + bytes(84)])
def test_garbage_is_renamed(path: Path, junk: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(junk)
    with pytest.raises(MonitorError, match=r"is damaged: .*; the monitor renames the file"):
        IncidentReader(path).list()
    store_at(path).add(OWN_LIMIT)
    (aside,) = damaged_files(path)
    assert (aside.read_bytes(), aside.name) == (junk, "incidents.db.damaged-20260131T060000Z")
    assert intact(path) == [OWN_LIMIT["id"]]


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE mine (x)", "INSERT INTO mine VALUES (42)"],
        ["CREATE TABLE incidents (id TEXT)", f"PRAGMA application_id = {file.APPLICATION_ID}"],
        [
            "CREATE TABLE incidents (id TEXT)",
            f"PRAGMA application_id = {file.APPLICATION_ID}",
            f"PRAGMA user_version = {file.SCHEMA_VERSION}",
        ],
    ],
    ids=["somebody else's", "an older schema", "not the tables of its version"],
)
def test_another_database_is_renamed_whole(path: Path, statements: list[str]) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    store_at(path).add(EVICTION_WON)
    (aside,) = damaged_files(path)
    with closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (1,)
    assert intact(path) == [EVICTION_WON["id"]]


def test_damaged_files_are_kept_three_deep_and_their_names_logged(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    now = NOW
    store = store_at(path, log=Log(), clock=lambda: now)
    for number in range(6):
        store.add(variant(number))
        path.write_bytes(b"garbage %d" % number)
        now += 1
    store.add(OWN_LIMIT)
    assert [aside.read_bytes() for aside in damaged_files(path)] == [b"garbage 3", b"garbage 4", b"garbage 5"]
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 6
    assert "the incident store is damaged; it is renamed and a new one begun" in lines[0]
    assert str(damaged_files(path)[-1]) in lines[-1]


def test_a_damaged_incident_costs_itself(path: Path) -> None:
    store = store_at(path)
    for number in range(30):
        store.add(variant(number))
    content = bytearray(path.read_bytes())
    ours = file.encode(variant(17))["head"]
    while content.count(ours) != 1:  # it may go on in another page, and others may begin alike
        ours = ours[:-1]
    at = content.rindex(ours)
    content[at + 20] ^= 0xFF  # inside the compressed JSON, where SQLite sees nothing wrong
    path.write_bytes(content)
    reader = IncidentReader(path)
    assert len(reader.list()) == 29
    assert reader.unreadable == 1
    with pytest.raises(MonitorError, match=r"'incident-00017' in .* is damaged"):
        reader.get("incident-00017")
    store_at(path).add(variant(30))
    assert len(intact(path)) == 31
    assert damaged_files(path) == []


def test_the_journal_of_a_damaged_file_is_never_left_to_the_new_one(path: Path) -> None:
    killed_in_a_transaction(path)
    path.write_bytes(b"garbage" * 1000)
    store_at(path).add(OWN_LIMIT)
    assert len(damaged_files(path)) == 1
    assert file.journal_of(path).stat().st_size == 0
    assert intact(path) == [OWN_LIMIT["id"]]

"""The file of a recording: what goes in comes out, and of a damaged one all that stands before the damage."""

import errno
import io
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.errors import MonitorError
from monitor.side import recording
from monitor.side.recording import MAGIC, Reader, Writer
from tests.filesystems import Mounts
from tests.replay.world import fresh

HEADER = {"session": "a", "config": {}}
Record = dict[str, Any]


def record(number: int, size: int = 10) -> Record:
    return {"n": number, "k": "event", "v": {"text": "x" * size, "number": number}}


def write(writer: Writer, *block: Record) -> None:
    writer.write(block[0]["n"], [json.dumps(one).encode() for one in block])


def recorded(path: Path, blocks: list[list[Record]]) -> bytes:
    """The bytes of a recording with these blocks."""
    path.unlink(missing_ok=True)
    writer = Writer(path, HEADER)
    for block in filter(None, blocks):
        write(writer, *block)
    writer.close()
    return path.read_bytes()


def read(data: bytes) -> tuple[list[Record], Reader]:
    reader = Reader(io.BytesIO(data), "FILE")
    return list(reader.records()), reader


def ends(data: bytes) -> list[int]:
    """Where the blocks of a recording end, the header's first."""
    at, found = data.index(b"\n") + 1, []
    while at < len(data):
        at += recording._HEAD.size + int.from_bytes(data[at + 4 : at + 8], "little")
        found.append(at)
    return found


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[list[Record]]]:
    blocks = [[record(0), record(1)], [record(2)], [record(3), record(4), record(5)]]
    return recorded(tmp_path_factory.mktemp("sample") / "rec", blocks), blocks


texts = st.text(max_size=20) | st.integers() | st.booleans() | st.none()


@given(st.lists(st.lists(st.dictionaries(st.text(max_size=5), texts, max_size=4), max_size=5), max_size=5))
@settings(max_examples=50, deadline=None)
def test_what_is_written_is_read(blocks: list[list[Record]]) -> None:
    numbers = iter(range(1000))
    wanted = [[{"n": next(numbers), "k": "event", "v": value} for value in block] for block in blocks]
    path = fresh() / "rec"
    if not any(wanted):
        with pytest.raises(FileNotFoundError):  # nothing begins no file
            recorded(path, wanted)
        return
    found, reader = read(recorded(path, wanted))
    assert found == [one for block in wanted for one in block]
    assert reader.damage is None
    assert reader.header == {**HEADER, "part": 0, "first": 0}


def test_cut_off_anywhere_it_is_read_up_to_the_block_and_the_place_is_named(
    sample: tuple[bytes, list[list[Record]]],
) -> None:
    data, blocks = sample
    boundaries = ends(data)
    assert len(boundaries) == 1 + len(blocks)
    first = data.index(b"\n") + 1
    for size in range(first, len(data)):
        found, reader = read(data[:size])
        whole = sum(1 for end in boundaries if end <= size)
        assert found == [one for block in blocks[: max(0, whole - 1)] for one in block]
        assert (reader.header is None) == (whole == 0)
        if size in boundaries:
            assert reader.damage is None  # a daemon that was killed between two blocks
        else:
            assert (reader.damage.offset, reader.damage.record) == ([first, *boundaries][whole], len(found))
            assert "it ends " in str(reader.damage)


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_flipped_bit_is_found_in_its_block(sample: tuple[bytes, list[list[Record]]], data: st.DataObject) -> None:
    good, blocks = sample
    boundaries = ends(good)
    at = data.draw(st.integers(good.index(b"\n") + 1, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    found, reader = read(bytes(bad))
    whole = sum(1 for end in boundaries if end <= at)  # blocks before the damage, that of the header included
    assert found == [one for block in blocks[: max(0, whole - 1)] for one in block]
    assert reader.damage.offset == (boundaries[whole - 1] if whole else good.index(b"\n") + 1)
    assert reader.damage.record == len(found)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_whatever_follows_a_good_block_it_is_damage_or_nothing(
    sample: tuple[bytes, list[list[Record]]], more: bytes
) -> None:
    good, blocks = sample
    found, reader = read(good + more)
    assert found == [one for block in blocks for one in block]
    assert (reader.damage is None) == (not more)


def test_a_block_that_unpacks_to_more_than_its_header_is_not_unpacked() -> None:
    body = zlib.compress(b"[" * (1 << 24))
    head = recording._HEAD.pack(recording._MARK, len(body), 100, 0, 0)[:-4]
    block = head + zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "little") + body
    _, reader = read(MAGIC + b"1\n" + block)
    assert "another size than it says" in str(reader.damage)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"", "FILE: no recording; name a file that"),
        (b"hello\n", "FILE: no recording; name a file that"),
        (MAGIC + b"x\n", "FILE: no recording; name a file that"),
        (MAGIC + b"1" * 100, "FILE: no recording; name a file that"),
        (MAGIC + b"3\n", "FILE: recorded in format 3, and this outrace reads up to 2; replay it with the version"),
    ],
)
def test_what_is_no_recording_or_a_newer_one_is_refused_in_one_line(line: bytes, expected: str) -> None:
    with pytest.raises(MonitorError) as caught:
        read(line)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", [b"[]", b"{}", b'{"n": "1", "k": "event", "v": {}}', b'{"n": 1, "k": "event"}', b"{"])
def test_a_record_that_is_none_ends_it(tmp_path: Path, line: bytes) -> None:
    writer = Writer(tmp_path / "rec", HEADER)
    lines = [json.dumps(record(0)).encode(), line, json.dumps(record(2)).encode()]
    writer.write(0, lines)
    writer.close()
    found, reader = read((tmp_path / "rec").read_bytes())
    assert [one["n"] for one in found] == [0]
    assert reader.damage.record == 1


# -- files -------------------------------------------------------------------------------------------------------------


def noise(number: int) -> Record:
    """A record that cannot be compressed."""
    return {"n": number, "k": "event", "v": {"noise": os.urandom(5000).hex()}}


def test_files_rotate_by_size_and_the_oldest_goes(tmp_path: Path) -> None:
    path, begun = tmp_path / "rec", []
    writer = Writer(path, HEADER, lambda: begun.append(1), file_bytes=20_000, files=3)
    for i in range(20):
        write(writer, noise(i))
    writer.close()
    names = [path, tmp_path / "rec.1", tmp_path / "rec.2"]
    assert sorted(tmp_path.iterdir()) == sorted(names)
    assert all(name.stat().st_size <= 20_000 for name in names)
    parts, numbers = [], []
    for name in reversed(names):
        found, reader = read(name.read_bytes())
        assert reader.damage is None
        assert reader.header["first"] == found[0]["n"]
        parts.append(reader.header["part"])
        numbers += [one["n"] for one in found]
    assert numbers == list(range(numbers[0], 20))
    assert parts == [parts[-1] - 2, parts[-1] - 1, parts[-1]]
    assert len(begun) == parts[-1]


@pytest.mark.parametrize("name", ["rec", "rec.3"])
def test_what_is_no_recording_is_not_touched(tmp_path: Path, name: str) -> None:
    for old in ("rec", "rec.1", "rec.2", "rec.3"):
        recorded(tmp_path / old, [[record(0)]])
    (tmp_path / name).write_text("the thesis")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    writer = Writer(tmp_path / "rec", HEADER)
    with pytest.raises(OSError, match="holds something else than a recording"):
        write(writer, record(7))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert writer.lost == 1


@pytest.mark.parametrize("what", ["directory", "fifo", "link"])
def test_only_a_regular_file_is_rotated(tmp_path: Path, what: str) -> None:
    path = tmp_path / "rec"
    if what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    else:
        recorded(tmp_path / "other", [[record(0)]])
        path.symlink_to(tmp_path / "other")
    writer = Writer(path, HEADER)
    with pytest.raises(OSError, match="no regular file"):
        write(writer, record(7))
    assert not (tmp_path / "rec.1").exists()


def test_a_full_disk_costs_records_and_leaves_no_half_block(mounts: Mounts) -> None:
    path = mounts.tmpfs("small", 64 << 10) / "rec"
    writer = Writer(path, HEADER)
    full: list[OSError] = []
    for i in range(20):
        try:
            write(writer, noise(i))
        except OSError as error:
            full.append(error)
    assert {error.errno for error in full} == {errno.ENOSPC}
    assert writer.lost == len(full)
    found, reader = read(path.read_bytes())
    assert reader.damage is None
    assert len(found) == 20 - len(full)
    writer.close()

"""Log lines: readable back, one line whatever is in them, and the journal's prefix only under the journal."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from monitor.side.export.log import Log, format_line, under_journal, write_all

FIELDS = st.dictionaries(
    st.sampled_from(["pod", "pid", "bytes", "order"]),
    st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.lists(st.text(max_size=5), max_size=3)),
)


@given(st.text(), FIELDS)
def test_json_lines_read_back(message: str, fields: dict[str, object]) -> None:
    line = format_line("info", message, fields, style="json", now=0.0)
    assert "\n" not in line
    assert json.loads(line) == {"ts": "1970-01-01T00:00:00.000Z", "level": "info", "msg": message, **fields}


@given(st.text(), FIELDS)
def test_logfmt_lines_are_one_line_with_every_key_in_order(message: str, fields: dict[str, object]) -> None:
    line = format_line("warning", message, fields, now=1.25)
    assert len(line.splitlines()) == 1
    assert line.startswith("ts=1970-01-01T00:00:01.250Z level=warning msg=")
    keys = [word.partition("=")[0] for word in re.findall(r'[a-z]+=(?:"(?:[^"\\]|\\.)*"|[^ ]*)', line)]
    assert keys == ["ts", "level", "msg", *fields]


def test_logfmt_as_people_read_it() -> None:
    line = format_line("info", "would evict", {"pod": "ns/a", "n": 3, "ok": True, "none": None, "l": [1, 2]}, now=0)
    assert shlex.split(line)[2:] == ["msg=would evict", "pod=ns/a", "n=3", "ok=true", "none=null", "l=[1,2]"]


def test_a_field_never_replaces_the_head() -> None:
    assert format_line("info", "m", {"level": "x", "msg": "y"}, now=0).endswith("level=info msg=m")


def test_journal_is_recognised_by_device_and_inode(tmp_path: Path) -> None:
    with open(tmp_path / "stream", "wb") as file:
        status = os.fstat(file.fileno())
        assert under_journal(file.fileno(), {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        assert not under_journal(file.fileno(), {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"})
        assert not under_journal(file.fileno(), {})
    assert not under_journal(-1, {"JOURNAL_STREAM": "1:2"})
    line = format_line("error", "broken", {}, now=0, journal=True)
    assert line == "<3>level=error msg=broken"  # journald has its own clock


def test_log_writes_through_a_real_descriptor() -> None:
    code = "from monitor.side.export.log import Log; Log('logfmt').warning('careful', pod='ns/a', message='two words')"
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": root}, capture_output=True, text=True, check=True
    )
    assert done.stderr.endswith('level=warning msg=careful pod=ns/a message="two words"\n')


def test_a_non_blocking_descriptor_gets_everything() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    data = os.urandom(1 << 18)  # four times what a pipe holds
    received = bytearray()

    def read() -> None:
        while chunk := os.read(read_end, 4096):
            received.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        write_all(write_end, data)
    finally:
        os.close(write_end)
        reader.join(30)
        os.close(read_end)
    assert bytes(received) == data


def test_text_that_is_not_unicode_does_not_stop_the_log() -> None:
    read_end, write_end = os.pipe()
    try:
        Log("logfmt", fd=write_end).info("name", comm="\udcff")
        assert b"udcff" in os.read(read_end, 4096)
    finally:
        os.close(read_end)
        os.close(write_end)

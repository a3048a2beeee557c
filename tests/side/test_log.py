"""Log lines: readable back, one line whatever is in them, read by a real journald; and how many a pod can cause."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.side.export import log
from monitor.side.export.log import BURST, INTERVAL_NS, Log, LogBudget, format_line, under_journal, write_all
from tests.live import environment
from tests.log_lines import LogLines

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
    assert format_line("info", "m", {"level": "x", "msg": "y"}, now=0).endswith("level=info msg=m")  # the head stays
    line = format_line("info", "would evict", {"pod": "ns/a", "n": 3, "ok": True, "none": None, "l": [1, 2]}, now=0)
    assert shlex.split(line)[2:] == ["msg=would evict", "pod=ns/a", "n=3", "ok=true", "none=null", "l=[1,2]"]


def test_journal_is_recognised_by_device_and_inode(tmp_path: Path) -> None:
    with open(tmp_path / "stream", "wb") as file:
        status = os.fstat(file.fileno())
        assert under_journal(file.fileno(), {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        assert not under_journal(file.fileno(), {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"})
        assert not under_journal(file.fileno(), {})
    assert not under_journal(-1, {"JOURNAL_STREAM": "1:2"})
    line = format_line("error", "broken", {}, now=0, journal=True)
    assert line == "<3>level=error msg=broken"  # journald has its own clock


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
        Log("logfmt", fd=write_end).info("name", comm="\udcff")  # no Unicode
    finally:
        os.close(write_end)
        reader.join(60)
        os.close(read_end)
    assert received.startswith(data)
    assert b"udcff" in received[len(data) :]


class Logged(LogLines):
    """With a budget, by a clock that is set by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000_000
        self.budget = LogBudget(self, lambda: self.now)


def test_the_first_are_written_and_the_rest_is_one_line() -> None:
    logged = Logged()
    for n in range(1000):
        logged.budget("warning", "killed", pod="ns/a", pid=n)
    assert logged.lines == [("warning", "killed", {"pod": "ns/a", "pid": n}) for n in range(BURST)]
    assert logged.budget.left_out == {"ns/a": 1000 - BURST}
    logged.now += INTERVAL_NS - 1
    logged.budget.flush()  # not yet
    assert len(logged.lines) == BURST
    logged.now += 1
    logged.budget.flush()
    summary = {"pod": "ns/a", "of": "killed", "lines": 1000 - BURST, "seconds": 10.0}
    assert logged.lines[BURST:] == [("warning", "more of the same", summary)]
    logged.budget("warning", "killed", pod="ns/a", pid=0)  # and it begins anew
    assert logged.lines[-1][1] == "killed"


def test_what_is_kept_of_pods_that_are_gone_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_MOST", 10)
    logged = Logged()
    for n in range(30):
        logged.now += 1_000_000_000
        for _ in range(BURST + 2):
            logged.budget("info", "gone", pod=f"ns/{n}")
    assert len(logged.budget._lines) <= 11
    assert len(logged.budget.left_out) == 10
    assert logged.budget.left_out["ns/29"] == 2


def test_each_pod_and_each_kind_has_its_own() -> None:
    logged = Logged()
    for _ in range(2 * BURST):
        logged.budget("info", "gone", pod="ns/noisy")
        logged.budget("info", "gone", pod=None, victim_cgroup=7)
    logged.budget("info", "gone", pod="ns/b")
    logged.budget("info", "killed", pod="ns/noisy")
    logged.budget("info", "gone", pod=None, victim_cgroup=8)  # a user makes cgroups without end
    assert len(logged.lines) == 2 * BURST + 2
    logged.budget.flush(at_once=True)
    assert [line[2]["pod"] for line in logged.lines[-2:]] == ["ns/noisy", "(no pod)"]


def test_a_users_units_have_one() -> None:
    logged = Logged()
    for n in range(2 * BURST):
        logged.budget("info", "pod found", pod=f"user-1000/u{n}.scope")
        logged.budget("info", "pod found", pod=f"system/u{n}.service")
    assert len(logged.lines) == BURST + 2 * BURST


JOURNALD = Path("/lib/systemd/systemd-journald")

# Everything below /run is ours here: the machine's own journal, if it has one, is not seen.
_SCRIPT = r"""
set -e
mount -t tmpfs none /run
mkdir -p /run/systemd/journal /run/log/journal
"$1" >/dev/null 2>&1 & journald=$!
trap 'kill $journald' EXIT
until [ -S /run/systemd/journal/stdout ]; do sleep 0.02; done
"$2" -c "$3"
journalctl --directory /run/log/journal --sync >/dev/null 2>&1 || true
for i in $(seq 1000); do
  journalctl -D /run/log/journal -o json --all --no-pager SYSLOG_IDENTIFIER=outrace >"$4" 2>/dev/null || true
  [ "$(wc -l <"$4")" -ge 2 ] && break
  sleep 0.05
done
"""
_WRITER = """
import os, socket
from monitor.side.export.log import Log
# As systemd does it: stderr is a stream to journald, and JOURNAL_STREAM names it.
stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
stream.connect("/run/systemd/journal/stdout")
stream.sendall(b"outrace\\n\\n6\\n1\\n0\\n0\\n0\\n")
status = os.fstat(stream.fileno())
os.environ["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino}"
log = Log("json", fd=stream.fileno())
log.warning("incident", verdict="own_limit", flags=["global"], margin_bytes=-5, id="i1")
log.error("two\\nlines", problem="a\\nb")
"""


@pytest.mark.kernel
@pytest.mark.once
def test_a_real_journald_has_each_line_with_its_priority(tmp_path: Path) -> None:
    if not JOURNALD.exists() or shutil.which("journalctl") is None or os.geteuid() != 0:
        pytest.skip("needs systemd-journald, journalctl and root: apt-get install systemd")
    out = tmp_path / "entries"
    subprocess.run(
        ["unshare", "--mount", "bash", "-c", _SCRIPT, "test", JOURNALD, sys.executable, _WRITER, out],
        env=environment(),
        check=True,
        timeout=240,
    )
    entries = [json.loads(line) for line in out.read_text().splitlines()]
    found = [(entry["PRIORITY"], json.loads(entry["MESSAGE"])) for entry in entries]
    incident = {"verdict": "own_limit", "flags": ["global"], "margin_bytes": -5, "id": "i1"}
    assert found == [
        ("4", {"level": "warning", "msg": "incident", **incident}),
        ("3", {"level": "error", "msg": "two\nlines", "problem": "a\nb"}),
    ]

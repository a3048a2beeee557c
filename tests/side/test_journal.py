"""Entries of the journal, asked of a real journald, in a mount namespace of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.side.export.log import entry
from tests.live import environment

JOURNALD = Path("/lib/systemd/systemd-journald")

# Everything below /run is ours here: the machine's own journal, if it has one, is not seen.
_SCRIPT = r"""
set -e
mount -t tmpfs none /run
mkdir -p /run/systemd/journal /run/log/journal
"$1" >/dev/null 2>&1 & journald=$!
trap 'kill $journald' EXIT
until [ -S /run/systemd/journal/socket ] && [ -S /run/systemd/journal/stdout ]; do sleep 0.02; done
"$2" -c "$3"
journalctl --directory /run/log/journal --sync >/dev/null 2>&1 || true
for i in $(seq 100); do
  journalctl -D /run/log/journal -o json --all --no-pager SYSLOG_IDENTIFIER=outrace >"$4" 2>/dev/null || true
  [ "$(wc -l <"$4")" -ge 3 ] && break
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
assert log._native is not None
log.warning("incident", verdict="own_limit", flags=["global"], margin_bytes=-5, id="i1")
log.error("two\\nlines", problem="a\\nb")
log.info("large", steps="x" * 3_000_000)
"""


def test_fields_are_named_as_journald_wants_them() -> None:
    data = entry("shown", 4, "msg", {"margin_ms": 1.5, "a-b x": None, "MESSAGE": "own", "two": "a\nb"})
    lines = data.split(b"\n")
    assert lines[:3] == [b"MESSAGE=shown", b"PRIORITY=4", b"SYSLOG_IDENTIFIER=outrace"]
    assert b"OUTRACE_MARGIN_MS=1.5" in lines
    assert b"OUTRACE_A_B_X=null" in lines
    assert b"OUTRACE_MESSAGE=own" in lines  # nobody's field can pretend to be the journal's own
    assert b"OUTRACE_TWO\n\x03\x00\x00\x00\x00\x00\x00\x00a\nb\n" in data


@pytest.mark.kernel
@pytest.mark.once
def test_a_real_journald_finds_a_verdict(tmp_path: Path) -> None:
    if not JOURNALD.exists() or shutil.which("journalctl") is None or os.geteuid() != 0:
        pytest.skip("needs systemd-journald, journalctl and root: apt-get install systemd")
    out = tmp_path / "entries"
    subprocess.run(
        ["unshare", "--mount", "bash", "-c", _SCRIPT, "test", JOURNALD, sys.executable, _WRITER, out],
        env=environment(),
        check=True,
        timeout=240,
    )
    found = {made["OUTRACE_MSG"]: made for made in map(json.loads, out.read_text().splitlines())}
    incident = found["incident"]
    assert (incident["OUTRACE_VERDICT"], incident["PRIORITY"]) == ("own_limit", "4")
    assert incident["OUTRACE_MARGIN_BYTES"] == "-5"
    assert incident["MESSAGE"].startswith("incident verdict=own_limit")
    assert found["two\nlines"]["OUTRACE_PROBLEM"] == "a\nb"
    assert len(found["large"]["OUTRACE_STEPS"]) == 3_000_000

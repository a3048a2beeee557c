"""The state file of the alert receivers: what a restart, a kill, a full or hanging disk and garbage make of it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from monitor.side.alerts import queue, send
from monitor.side.alerts.rules import Alert
from monitor.side.alerts.send import AlertSender
from tests.alerts.services import sender
from tests.live import environment, until
from tests.log_lines import LogLines

URL = "http://127.0.0.1:9"  # where nobody listens


def alert(name: str = "P", at: float = 100.0) -> Alert:
    return Alert(name, {"node": "n"}, {}, at)


def test_the_state_is_private_and_no_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / send.FILE_NAME
    path.symlink_to(victim)
    log = LogLines()
    with sender(tmp_path, [URL], log=log) as sending:
        assert "symbolic links" in log.matching("cannot be read")[0]["problem"]
        sending.fire(alert())
    assert victim.read_text() == "precious"
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 1000,
        b"\xff\xfe garbage\n" * 50,
        b"[" * 100_000,
        b"3",
        b'{"version": 99, "receivers": {}}',
        b'{"version": 1, "receivers": 3}',
        b'{"version": 1, "receivers": {"KEY": 3}}',
        b'{"version": 1, "receivers": {"KEY": {"seq": 1, "active": [3], "pending": []}}}',
        b'{"version": 1, "receivers": {"KEY": {"seq": "x", "active": [], "pending": []}}}',
    ],
)
def test_any_garbage_is_survived_and_logged(tmp_path: Path, content: bytes) -> None:
    with sender(tmp_path, [URL]) as sending:
        sending.fire(alert())
    (key,) = json.loads((tmp_path / send.FILE_NAME).read_bytes())["receivers"]
    (tmp_path / send.FILE_NAME).write_bytes(content.replace(b"KEY", key.encode()))
    log = LogLines()
    assert list(AlertSender(tmp_path, [URL], [], log, "n").counters.values()) == [
        {"sent": 0, "failed": 0, "dropped": 0, "waiting": 0}
    ]
    assert len(log.matching("alerts from before the restart")) == 1


def test_a_state_dir_that_cannot_be_written_stops_no_alert(tmp_path: Path) -> None:
    log = LogLines()
    sending = AlertSender(tmp_path / "missing", [URL], [], log, "n")
    sending.start()
    sending.fire(alert("A", time.time()))
    (name,) = sending.counters
    until(lambda: sending.counters[name]["failed"] >= 3, "it is tried all the same")
    assert len(log.matching("would not survive a restart")) == 1
    (tmp_path / "missing").mkdir()
    until(lambda: any((tmp_path / "missing").iterdir()), "written as soon as that is possible")
    assert sending.close(60)
    again = AlertSender(tmp_path / "missing", [URL], [], log, "n")
    assert again.counters[name]["waiting"] == 1


def test_the_state_holds_no_secrets_and_no_receiver_that_is_configured_no_more(tmp_path: Path) -> None:
    with sender(tmp_path, [], ["https://me:pass@127.0.0.1:9/T0K3N", "https://127.0.0.1:9/other"]) as sending:
        assert list(sending.counters) == ["webhook 127.0.0.1:9", "webhook 127.0.0.1:9 #2"]
        sending.fire(alert())
    everything = "".join(path.name + path.read_text() for path in tmp_path.iterdir())
    assert len(json.loads((tmp_path / send.FILE_NAME).read_bytes())["receivers"]) == 2
    assert "pass" not in everything
    assert "T0K3N" not in everything
    log = LogLines()
    with sender(tmp_path, [URL], log=log):
        pass
    assert len(json.loads((tmp_path / send.FILE_NAME).read_bytes())["receivers"]) == 1
    assert log.matching("configured no more") == [{"receivers": 2}]


def test_nobody_waits_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a flush that never ends, ten thousand alerts are taken, and bounded, and deliveries go on."""
    stuck, reached = threading.Event(), threading.Event()

    def hang(_: int) -> None:
        reached.set()
        stuck.wait()

    monkeypatch.setattr(os, "fsync", hang)
    sending = AlertSender(tmp_path, [URL], [], LogLines(), "n")
    sending.start()
    sending.fire(alert("A", time.time()))
    assert reached.wait(120)
    for n in range(10_000):
        sending.fire(alert(f"A{n}", time.time()))
    (found,) = sending.counters.values()
    assert found["waiting"] == queue.MAX_WAITING
    assert found["dropped"] >= 10_000 - queue.MAX_WAITING
    until(lambda: next(iter(sending.counters.values()))["failed"] >= 3, "it is tried again and again")
    assert not sending.close(0.2)
    stuck.set()


def test_a_storm_is_written_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes = 0
    fsync = os.fsync

    def counted(fd: int) -> None:
        nonlocal flushes
        flushes += 1
        fsync(fd)

    monkeypatch.setattr(os, "fsync", counted)
    began = time.monotonic()
    with sender(tmp_path, [URL]) as sending:
        for n in range(500):
            sending.fire(alert(f"A{n}"))
    assert flushes <= 3 + (time.monotonic() - began) / send.BATCH_S
    (name,) = sending.counters
    assert AlertSender(tmp_path, [URL], [], LogLines(), "n").counters[name]["waiting"] == 500


#: Fires a second alert, and ends itself with SIGKILL at the n-th system call that opens or changes a name.
SUICIDE = """
import os, signal, sys
from pathlib import Path
from monitor.side.alerts.rules import Alert
from monitor.side.alerts.send import AlertSender
from monitor.side.export.log import Log
count = int(sys.argv[2])
def hook(event, arguments):
    global count
    if event in ("open", "os.rename", "os.remove") and "alerts.json" in str(arguments[0]):
        count -= 1
        if count < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sender = AlertSender(Path(sys.argv[1]), ["http://127.0.0.1:9"], [], Log(), "n")
sys.addaudithook(hook)
sender.start()
sender.fire(Alert("second", {}, {}, 100.0))
assert sender.close(60)
"""


def test_killed_at_any_moment_the_old_or_the_new_state_is_there(tmp_path: Path) -> None:
    for step in range(20):
        directory = tmp_path / str(step)
        directory.mkdir()
        with sender(directory, [URL]) as sending:
            sending.fire(alert())
        code = [sys.executable, "-c", SUICIDE, str(directory), str(step)]
        done = subprocess.run(code, env=environment(), stderr=subprocess.PIPE, text=True, timeout=240, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        if done.returncode == 0:
            assert waiting(directory) == 2
            break
        assert waiting(directory) in (1, 2)
    assert step >= 3, "it was killed before, in and after the write"
    assert done.returncode == 0


def waiting(directory: Path) -> int:
    """Alerts that wait, by the next process, which finds nothing to complain of."""
    log = LogLines()
    (found,) = AlertSender(directory, [URL], [], log, "n").counters.values()
    assert [line for line in log.lines if line[0] != "info"] == []
    return found["waiting"]

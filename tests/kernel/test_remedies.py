"""Every error of the kernel's has a remedy, also the rare ones: of attaching, of pins, of the log."""

import ctypes
import errno
import os
import select
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from monitor.errors import CannotError, MonitorError
from monitor.hot import polled_kills
from monitor.hot.polled_kills import PolledKills
from monitor.kernel import kmsg, libbpf, loader


@pytest.mark.parametrize(
    ("number", "of_pins", "of_kprobes"),
    [
        (errno.EPERM, "CAP_BPF and CAP_PERFMON", "CAP_BPF and CAP_PERFMON"),
        (errno.EMFILE, "LimitNOFILE", "LimitNOFILE"),
        (errno.EBUSY, "stop the outrace", "another of --hooks"),
        (errno.EINVAL, "outrace unload", "kprobes/blacklist"),
        (errno.ENOSPC, "outrace unload", "another of --hooks"),
    ],
)
def test_of_pins_and_of_kprobes(number: int, of_pins: str, of_kprobes: str) -> None:
    ctypes.set_errno(number)
    for error, remedy in (
        (libbpf.failure("cannot pin it"), of_pins),
        (libbpf._kprobe_refused("page_counter_try_charge", number), of_kprobes),
    ):
        assert error.message.endswith(os.strerror(number))
        assert remedy in error.remedy
        assert isinstance(error, CannotError) == (number == errno.EPERM)


@pytest.mark.parametrize("gap", [None, 1, 3])
def test_lines_of_the_log_that_were_lost_are_logged(monkeypatch: pytest.MonkeyPatch, gap: int | None) -> None:
    lines = [b"6,1,%d,-;line\n" % (us,) for us in (1_000_000, 1_500_000, 2_000_000)]
    monkeypatch.setattr(polled_kills, "kmsg_records", lambda *_: (lines, gap))
    sent: list[Any] = []
    other: Any = MagicMock()
    soft = PolledKills(other, other, other, other, sent.append)
    soft._fd = 0
    assert soft.consume(0)
    assert [line.msg for line in sent] == ([] if gap is None else ["lines of the kernel's log were lost"])


def test_the_kernels_log_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe2(os.O_NONBLOCK)

    def fail(*_: object) -> Any:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    sent: list[Any] = []
    with select.epoll() as epoll:
        epoll.register(read, select.EPOLLIN)
        other: Any = MagicMock()
        soft = PolledKills(other, other, other, other, sent.append)
        soft._fd, soft._epoll = read, epoll
        monkeypatch.setattr(polled_kills, "kmsg_records", fail)
        assert soft.consume(read)
        assert soft._fd == -1, "closed: kills are counted from now on"
    os.close(write)
    (line,) = sent
    assert line.msg == "the kernel's log cannot be read"
    assert "CAP_SYSLOG" in line.fields["remedy"]

    log = kmsg.Kmsg("/dev/null")
    monkeypatch.setattr("monitor.kernel.kmsg.os.read", fail)
    with pytest.raises(MonitorError, match="restart outrace with CAP_SYSLOG"):
        log.read()
    log.close()


@pytest.mark.parametrize(
    ("status", "ends", "remedy"),
    [("kill -9 $$", -9, "it needs 150 MB; details in {log}"), ("echo what >&2; exit 4", 4, "details in {log}")],
)
def test_a_loader_without_a_message_has_its_log_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, ends: int, remedy: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{status}\n")
    python.chmod(0o755)
    log = tmp_path / loader.LOG
    log.write_text("of an earlier one\n")
    monkeypatch.setattr("monitor.kernel.loader.sys.executable", str(python))
    with pytest.raises(CannotError) as caught:
        loader._load_if_missing(tmp_path, tmp_path / "instance/stamp", "memcg-tracepoint", loader.KUBELETS)
    assert caught.value.message.startswith(f"the BPF loader ended with status {ends}: ")
    assert caught.value.remedy.endswith(remedy.format(log=log))
    line = log.read_text()
    assert f"the loader ended with status {ends}" in line
    assert "of an earlier one" not in line
    assert ("what" in line) == (ends == 4)

"""Every error of the kernel's has a remedy, also the rare ones: of attaching, of pins, of the log."""

import ctypes
import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from monitor.errors import CannotError
from monitor.kernel import kmsg, libbpf, loader
from monitor.sources.logged_kills import LoggedKills
from tests.daemon.stand_ins import outbox


@pytest.mark.parametrize(
    ("number", "of_pins", "of_kprobes"),
    [
        (errno.EPERM, "CAP_BPF and CAP_PERFMON", "CAP_BPF and CAP_PERFMON"),
        (errno.EMFILE, "LimitNOFILE", "LimitNOFILE"),
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


def test_a_log_that_loses_lines_and_ends_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then kills are counted."""
    line = b"6,1,1000000,-;line\n"
    answers: list[Any] = [line, errno.EPIPE, line, errno.EAGAIN, errno.EPERM]

    def read(*_: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    sent: list[Any] = []
    other: Any = MagicMock()
    soft = LoggedKills(other, outbox(sent.append))
    soft.open(other, other)
    soft._kmsg = log = kmsg.Kmsg(other, "/dev/null")
    monkeypatch.setattr("monitor.kernel.kmsg.os.read", read)
    soft.consume(log.fileno())
    assert [one.msg for one in sent] == ["lines of the kernel's log were lost"]
    assert soft.due_ns() is None
    soft.consume(log.fileno())
    assert sent[1].msg == "the kernel's log cannot be read"
    assert "CAP_SYSLOG" in sent[1].fields["remedy"]
    assert soft.due_ns() == 0


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
        loader._run_loader(tmp_path, tmp_path / "instance/stamp", "memcg-tracepoint", loader.KUBELETS)
    assert caught.value.message.startswith(f"the BPF loader ended with status {ends}: ")
    assert caught.value.remedy.endswith(remedy.format(log=log))
    line = log.read_text()
    assert f"the loader ended with status {ends}" in line
    assert "of an earlier one" not in line
    assert ("what" in line) == (ends == 4)

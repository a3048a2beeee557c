"""The loads of mode hold: they take what they were told, notice damage, and count what failed for want of memory."""

import ctypes
import errno
import os
import signal

import pytest

from monitor.errors import ConfigError
from monitor.kernel import cgroup_procs
from monitor.lab import hog as hogs
from monitor.lab.hog import KINDS, Anonymous, File, Load, Patience
from monitor.lab.node import MIB, LabNode
from monitor.lab.race import sizes
from tests import live

node = live.fixture(LabNode, "test-checked", 128 * MIB)


@pytest.mark.kernel
@pytest.mark.oldest
@pytest.mark.parametrize("kind", KINDS)
def test_a_load_takes_what_it_was_told_has_what_it_wrote_and_gives_it_back(node: LabNode, kind: str) -> None:
    child = node.start_hog(node.add_pod("load"), kind=kind, mib=32, seed=7)
    before = node.usage()
    assert before < 8 * MIB, "a hog that waits should hold next to nothing"
    child.go()
    assert child.expect("grown") == "0", "no call failed"
    assert 24 * MIB <= node.usage() - before < 48 * MIB  # a forked child costs 2.5 to 2.7 MiB, as the kernel is
    child.send("check")
    assert child.answer() == "right"
    if kind != "fork":
        child.free()
        assert node.usage() - before < 4 * MIB  # each CPU keeps a few hundred KiB charged
    child.close_stdin()
    assert child.wait() == 0


def grown(of: type[Load], kind: str, mib: int) -> Load:
    load = of(kind, mib, 3)
    load.take(0, load.size)
    assert load.wrong() == 0
    return load


def test_one_byte_that_is_not_what_was_written_is_noticed() -> None:
    load = grown(Anonymous, "4k", 2)
    ctypes.memset(load._address + MIB + 5, 0, 1)
    assert load.wrong() == hogs._SMALL
    file = grown(File, "tmpfs", 1)
    os.pwrite(file._fd, b"\0", 70_000)
    assert file.wrong() == hogs._SMALL


@pytest.mark.kernel
@pytest.mark.oldest
def test_a_child_that_dies_is_noticed(node: LabNode) -> None:
    pod = node.add_pod("load")
    child = node.start_hog(pod, kind="fork", mib=16, seed=7)
    child.go()
    child.expect("grown")
    [killed, *_] = [pid for pid in cgroup_procs.processes(pod.containers["c0"]) if pid != child.pid]
    os.kill(killed, signal.SIGKILL)
    child.send("check")
    assert child.answer() == f"wrong {2 * MIB}"


def test_calls_that_failed_for_want_of_memory_are_done_again_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hogs, "_AGAIN_S", 0.0)
    outcomes = iter([errno.ENOMEM, errno.ENOBUFS, 0, 0, errno.ENOMEM, 0])

    def call() -> str:
        if number := next(outcomes):
            raise OSError(number, os.strerror(number))
        return "done"

    patience = Patience()
    assert [patience(call) for _ in range(3)] == ["done"] * 3
    assert patience.failed == 3

    def refuse() -> None:
        raise PermissionError(errno.EPERM, "no")

    with pytest.raises(PermissionError):
        patience(refuse)


@pytest.mark.parametrize(
    ("margin", "size"), [(1, 512), (8, 512), (32, 512), (100, 512), (8, 192), (32, 224), (100, 400)]
)
def test_beside_the_ballast_there_is_too_little_and_without_it_enough(margin: int, size: int) -> None:
    node, resident = size * MIB, 50 * MIB
    ballast, load = sizes(node, margin * MIB)
    assert resident + ballast < node - margin * MIB
    assert resident + ballast + load > node + margin * MIB // 2
    assert resident + load < node - margin * MIB
    with pytest.raises(ConfigError, match="more than leaves room"):
        sizes(node, size // 2 * MIB)

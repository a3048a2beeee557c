"""The lab node on the live kernel: what it makes, what its hogs do, and that it disappears however its owner ends."""

import signal
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from monitor.errors import CannotError
from monitor.lab.node import MIB, LabNode

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]


@pytest.fixture
def node() -> Iterator[LabNode]:
    with LabNode("test-lab", 96 * MIB) as made:
        yield made
    assert not made.cgroup.exists()


def test_a_hog_that_cycles_peaks_once_per_turn(node: LabNode) -> None:
    hog = node.start_hog(node.add_pod("hog"), mib=32, cycles=5)
    if node.hierarchy.version == 2 and not (node.cgroup / "memory.peak").exists():
        with pytest.raises(CannotError, match=r"has no memory\.peak; run Linux 5\.19 or newer"):
            node.reset_peak()
        return
    node.reset_peak()
    hog.go()
    hog.expect("grown")
    assert 32 * MIB <= node.usage() <= node.peak() < 48 * MIB


def test_a_hog_ends_with_its_stdin_even_while_it_grows(node: LabNode) -> None:
    hog = node.start_hog(node.add_pod("slow"), mib=64, rate=1)
    hog.go()
    hog.process.stdin.close()
    assert hog.wait() == 0


def test_the_end_of_a_hog_is_waited_for_without_looking(node: LabNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at every 50 ms, as `Popen.wait` does, its status was fetched later than the hot process waits for it."""
    hog = node.start_hog(node.add_pod("hog"), mib=8)
    monkeypatch.setattr("subprocess.time", SimpleNamespace(**vars(time) | {"sleep": pytest.fail}))
    threading.Timer(0.2, hog.process.kill).start()
    assert hog.wait() == -signal.SIGKILL

"""Both processes killed in the grace of a held pod: the next start goes on with it, soft brake and all."""

import signal

import pytest

from monitor.lab.node import LabNode
from tests import live
from tests.daemon.hold_node import V2, daemon, released
from tests.daemon.hot_node import hot_node

pytestmark = [pytest.mark.kernel, pytest.mark.newest]  # some minutes in an emulated guest

node = live.fixture(hot_node)

#: Grows until a SIGTERM, and ends only at a SIGUSR1.
_WAITS = """
asked, told = [], []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
block = mmap.mmap(-1, 100 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, len(block), 4096):
    if not asked: block[at] = 1
while not told: signal.pause()
print("answered", flush=True)
os._exit(7)
"""


def test_a_pod_goes_on_with_its_grace_after_a_sigkill_of_both_processes(node: LabNode) -> None:
    """The next daemon holds it on, and frozen it could not answer: it would get a SIGKILL at the end of its grace."""
    if not V2:
        pytest.skip("cgroup v1 has no memory.high: the guests of make test-vm have v2")
    pod, grace = node.add_pod("hog"), ("--hard-grace", "60s")
    with live.Puppet(pod.containers["c0"]) as hog:
        with daemon(node, 48, *grace, mode=("--mode", "enforce")) as running:
            hog.tell(f"exec({_WAITS!r})")
            live.until(lambda: (pod.cgroup / "pids.max").read_text() != "max\n", lambda: f"a soft brake: {running.log}")
            live.kill_both(running)
        with daemon(node, 48, *grace, mode=("--mode", "enforce")) as running:
            live.message(running, "going on with the eviction that the daemon before had begun")
            assert live.message(running, "a held pod may run, and hardly grow")["pod"] == "lab/hog"
            hog.process.send_signal(signal.SIGUSR1)
            assert hog.answer() == "answered"
            assert hog.wait() == 7
            live.message(running, "evicted")
        released(pod)
        live.until(lambda: (pod.cgroup / "pids.max").read_text() == "max\n", "pids.max to be as before")

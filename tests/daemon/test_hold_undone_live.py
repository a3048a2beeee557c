"""Both processes killed in the middle of a hold: what they changed is undone by the next start, in any mode;
and the soft brake of a grace, from the hot process to the kernel and back.
"""

import os
import signal

import pytest

from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod
from tests import live
from tests.daemon.hold_node import V2, daemon, holding, is_as_before, is_held, released
from tests.daemon.hot_node import hard, hot_node, up_to

pytestmark = [pytest.mark.kernel, pytest.mark.newest]  # some minutes in an emulated guest

node = live.fixture(hot_node)

#: Takes memory until SIGTERM, says so, and ends.
_ANSWERS = """
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
block = mmap.mmap(-1, 100 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, len(block), 4096):
    block[at] = 1
    if asked: break
print("answered", flush=True)
os._exit(7)
"""

#: Likewise, and ends only at a SIGUSR1.
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


def killed(running: LabDaemon) -> None:
    """The side first: it would release what the hot process held."""
    assert running.process is not None
    sides = live.children(running.pid)
    os.kill(running.pid, signal.SIGSTOP)  # so that it starts no other
    for side in sides:
        os.kill(side, signal.SIGKILL)
        live.until(lambda pid=side: not live.alive(pid), "the side to end")
    running.process.kill()
    running.process.wait()


def grown_and_left(node: LabNode, pod: LabPod, hog: live.Puppet, *options: str) -> None:
    """A pod is held, and nobody is there any more to release it."""
    with daemon(node, 16, *options) as running:
        hog.tell(f"anon({up_to(node, 118)})")
        holding(running, pod)
        killed(running)
        assert is_held(pod)
        assert not is_as_before(pod)


def test_the_next_start_releases_also_in_mode_observe(node: LabNode) -> None:
    pod = node.add_pod("hog")
    with live.Puppet(pod.containers["c0"]) as hog:
        grown_and_left(node, pod, hog)
        with live.daemon(node, *hard(16)):
            released(pod)
            assert hog.answer() == "done"
    assert node.oom_kills() == 0


def pod_of_v2(node: LabNode) -> LabPod:
    if not V2:
        pytest.skip("cgroup v1 has no memory.high: the guests of make test-vm have v2")
    return node.add_pod("hog")


def braked_softly(pod: LabPod) -> bool:
    return (pod.cgroup / "pids.max").read_text().strip() != "max"


def test_a_pod_answers_sigterm_in_its_grace(node: LabNode) -> None:
    pod = pod_of_v2(node)
    with (
        daemon(node, 48, "--hard-grace", "20s", mode=("--mode", "enforce")) as running,
        live.Puppet(pod.containers["c0"]) as hog,
    ):
        hog.tell(f"exec({_ANSWERS!r})")
        assert live.message(running, "a held pod may run, and hardly grow")["high"] < 80 * MIB
        assert hog.answer() == "answered"
        assert hog.wait() == 7
        assert live.message(running, "evicted")["pod"] == "lab/hog"
        released(pod)
        live.until(lambda: (pod.cgroup / "pids.max").read_text() == "max\n", "pids.max to be as before")
    assert node.oom_kills() == 0


def test_a_pod_goes_on_with_its_grace_after_a_sigkill_of_both_processes(node: LabNode) -> None:
    """The next daemon holds it on, and frozen it could not answer: it would get a SIGKILL at the end of its grace."""
    pod, grace = pod_of_v2(node), ("--hard-grace", "60s")
    with live.Puppet(pod.containers["c0"]) as hog:
        with daemon(node, 48, *grace, mode=("--mode", "enforce")) as running:
            hog.tell(f"exec({_WAITS!r})")
            live.until(lambda: braked_softly(pod), lambda: f"a soft brake: {running.poll()}")
            killed(running)
        with daemon(node, 48, *grace, mode=("--mode", "enforce")) as running:
            live.message(running, "going on with the eviction that the daemon before had begun")
            assert live.message(running, "a held pod may run, and hardly grow")["pod"] == "lab/hog"
            hog.process.send_signal(signal.SIGUSR1)
            assert hog.answer() == "answered"
            assert hog.wait() == 7
            live.message(running, "evicted")
        released(pod)
        live.until(lambda: (pod.cgroup / "pids.max").read_text() == "max\n", "pids.max to be as before")
    assert node.oom_kills() == 0

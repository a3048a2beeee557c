"""A lab node of the live kernel for the daemon, and what the tests of the hot process ask of the two: test_hot_*.py."""

from collections.abc import Iterator
from contextlib import contextmanager

from monitor.kernel import cgroupfs
from monitor.kernel.pins import Pins
from monitor.kernel.wire import VICTIM
from monitor.lab.daemon import LabDaemon, Record
from monitor.lab.node import MIB, LabNode, LabPod
from tests import live

IN_KERNEL = ("--enforce", "--trigger", "kernel")


@contextmanager
def losing_node(mib: int = 128) -> Iterator[LabNode]:
    """A node in which the OOM killer may win."""
    with LabNode("test-hot", mib * MIB) as made:
        yield made
    assert not made.cgroup.exists()


@contextmanager
def hot_node(mib: int = 128) -> Iterator[LabNode]:
    """A node in which it must not."""
    with losing_node(mib) as losing:
        yield losing
        assert losing.oom_kills() == 0, "the OOM killer was first"


def hard(mib: int) -> tuple[str, ...]:
    return ("--eviction-hard", f"memory.available<{mib}Mi")


def evicted(daemon: LabDaemon, pod: LabPod | str, since: int = 0) -> tuple[Record, Record]:
    """The decision on ``pod`` and its end, waited for."""
    title = pod if isinstance(pod, str) else f"{pod.namespace}/{pod.name}"
    decision = live.message(daemon, "evicting", since, pod=title)
    return decision, live.message(daemon, "evicted", since, id=decision["id"])


def decided(daemon: LabDaemon) -> list[str]:
    """Names of the pods decided on, in order."""
    return [record["pod"].split("/")[1] for record in live.messages(daemon, "evicting")]


def passes(daemon: LabDaemon, more: int = 2) -> None:
    """Wait until the policy was asked anew, once at least from begin to end: what grew before is no growth of now."""
    begin = live.metric(daemon, "passes_total")
    live.until(lambda: live.metric(daemon, "passes_total") >= begin + more, "passes of the policy")


def up_to(node: LabNode, used: int) -> int:
    """How many MiB are to be taken until ``used`` are in use: what processes and cgroups weigh is known by looking."""
    return round(used - node.usage() / MIB)


def armed() -> int:
    """Id of the pod cgroup whose processes the kernel may signal inside their own charge; 0: none."""
    with Pins(live.pin_dir()).mmap("victims", 32) as memory:
        generation, pod, _, _ = VICTIM.unpack_from(memory)
        return int(pod) if generation else 0


def armed_for(pod: LabPod) -> None:
    """Wait until the hot process knows that ``pod`` is the first: the trigger shows it at once."""
    number = cgroupfs.cgroup_id(pod.cgroup)
    live.until(lambda: armed() == number, f"the trigger to be armed for {pod.name}")

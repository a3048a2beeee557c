"""Which pod a real daemon evicts where another is larger, or names its neighbour."""

import signal

import pytest

from monitor.kernel import cgroupfs
from monitor.lab.child import Hog
from monitor.lab.node import LabNode
from tests import live
from tests.daemon.hot_node import decided, evicted, hard, hot_node

pytestmark = [pytest.mark.kernel, pytest.mark.once]
UID = "5c2b2da2-119f-4fa8-8801-c79f0fa869aa"
CID = "46b4aeed" * 8
GUESSING = ("--pods", "cgroups", "--enforce", "--enforce-unknown-specs")

node = live.fixture(hot_node)


def hog(node: LabNode, uid: str, mib: int) -> Hog:
    path = node.cgroup / f"kubepods/burstable/pod{uid}" / CID
    made = Hog(cgroupfs.make(path), mib=mib, rate=100)
    node.children.append(made)
    return made


def test_a_static_pod_is_passed_over_however_large_it_is(node: LabNode) -> None:
    static = hog(node, "e2" * 16, 60)
    static.go()
    static.expect("grown")
    other = hog(node, UID, 40)
    with live.daemon(node, *hard(32), *GUESSING) as daemon:
        other.go()
        live.message(daemon, "evicted", uid=UID)
        assert other.wait() == -signal.SIGKILL
        assert [record["uid"] for record in live.messages(daemon, "evicting")] == [UID]
    assert static.process.poll() is None


def test_an_annotation_that_names_another_costs_the_other_nothing(node: LabNode) -> None:
    """A pod of a low priority points at its neighbour's cgroup, and at the one of a unit of the machine's."""
    victim = hog(node, UID, 20)
    victim.go()
    victim.expect("grown")
    attacker = node.add_pod("attacker", priority=-10)
    manifest = next(path for path in node.manifests.iterdir() if "attacker" in path.name)
    own = str(attacker.cgroup.relative_to(cgroupfs.detect().root))
    other = str((node.cgroup / f"kubepods/burstable/pod{UID}").relative_to(cgroupfs.detect().root))
    manifest.write_text(manifest.read_text().replace(f'"{own}"', f'"{other}"'))
    fair = node.add_pod("fair")
    with live.daemon(node, "--enforce", *hard(32)) as daemon:
        assert daemon.wait_for(lambda r: f"is of the pod of uid {UID}" in str(r.get("msg")), live.TIMEOUT_S)
        grown = node.start_hog(fair, mib=80, rate=100)
        grown.go()
        evicted(daemon, fair)
        assert decided(daemon) == ["fair"]
    assert victim.process.poll() is None

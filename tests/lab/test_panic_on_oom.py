"""Mode hold where an OOM kill at a cap would panic the machine: only in a guest that may be lost (`make test-vm`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.hold.pod_brake import PANIC_ON_OOM
from monitor.kernel import cgroupfs
from monitor.lab.node import MIB, LabNode
from tests import live
from tests.daemon.hold_node import daemon, holding, is_held, pattern
from tests.daemon.hot_node import decided, hot_node, up_to

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.expendable,
    pytest.mark.skipif(cgroupfs.detect().version == 1, reason="a cap of cgroup v1 kills no process"),
]

node = live.fixture(hot_node)
#: MiB in use that cross a threshold of 32 and do not fill the node of 128: its limit would panic the machine too.
SHORT = 118


@pytest.fixture
def sysctl() -> Iterator[Path]:
    path = Path(PANIC_ON_OOM)
    yield path
    path.write_text("0")


@pytest.mark.parametrize("is_set", ["before", "during"])
def test_no_pod_is_held(node: LabNode, sysctl: Path, is_set: str) -> None:
    pod, database = node.add_pod("hog"), node.add_pod("database", "Guaranteed", request=64 * MIB)
    if is_set == "before":
        sysctl.write_text("2")
    with daemon(node, 32) as running, live.Puppet(pod.containers["c0"]) as hog:
        node.fill(database, 60)
        hog.tell(pattern(up_to(node, SHORT)))
        if is_set == "before":
            live.until(lambda: decided(running), "the pod to be evicted")
        else:
            holding(running, pod)
            sysctl.write_text("2")
            live.until(lambda: not is_held(pod), "the pod to be released")
        assert (pod.cgroup / "memory.max").read_text().strip() == "max"
        live.ended(running)
    warned = [record for record in running.log if "vm.panic_on_oom=2" in record.get("msg", "")]
    assert bool(warned) == (is_set == "before")

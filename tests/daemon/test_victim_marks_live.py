"""The guided OOM killer under a real daemon: which processes it marks, and that nothing stays when it is killed."""

from pathlib import Path

import pytest

from monitor.lab.child import Child
from monitor.lab.node import MIB, LabNode
from tests import live
from tests.daemon.hot_node import hard

pytestmark = [pytest.mark.kernel, pytest.mark.once]
#: By the kubelet's formula, for a request of an eighth of the node.
SECOND = 875
#: What the processes have before: no runtime gave them those.
OWN = (100, 200)


node = live.fixture(LabNode, "test-marks", 256 * MIB)


@pytest.fixture
def hogs(node: LabNode) -> list[Child]:
    """Of two pods far below their requests: the one of the lower priority is the policy's next victim."""
    first = node.add_pod("first", "Burstable", request=64 * MIB, priority=-10)
    second = node.add_pod("second", "Burstable", request=32 * MIB, priority=10)
    found = [node.fill(pod, 8) for pod in (first, second)]
    for hog, value in zip(found, OWN, strict=True):
        Path(f"/proc/{hog.pid}/oom_score_adj").write_text(str(value))
    return found


def values(hogs: list[Child]) -> list[int]:
    return [int(Path(f"/proc/{hog.pid}/oom_score_adj").read_text()) for hog in hogs]


def become(hogs: list[Child], *wanted: int) -> None:
    live.until(lambda: values(hogs) == list(wanted), f"oom_score_adj of {wanted}")


def test_it_is_marked_while_a_threshold_is_near_and_set_back_at_the_end(node: LabNode, hogs: list[Child]) -> None:
    with live.daemon(node, "--enforce", *hard(8)) as daemon:
        become(hogs, 1000, SECOND)
        live.until(lambda: live.metric(daemon, "oom_guided_pods") == 1, "the mark to be counted")
        live.ended(daemon)
        assert live.messages(daemon, "oom_score_adj of a pod's processes cannot be set") == []
    become(hogs, *OWN)


def test_in_mode_observe_no_pod_is_marked(node: LabNode, hogs: list[Child]) -> None:
    with live.daemon(node, "--mode", "observe", *hard(8)) as daemon:
        live.until(lambda: live.metric(daemon, "armed") == 1, "the threshold to be near")
        live.ended(daemon)
        assert 1000 not in values(hogs)
        marked = "a threshold is near: if the kernel must kill, it takes the pod that would be evicted next"
        assert live.messages(daemon, marked) == []


def test_a_daemon_that_was_killed_leaves_nothing(node: LabNode, hogs: list[Child]) -> None:
    """It is set back by the next start, or by `outrace unload`."""
    with live.daemon(node, "--enforce", *hard(8)) as daemon:
        become(hogs, 1000, SECOND)
        live.kill_both(daemon)
        daemon.start()
        become(hogs, 1000, SECOND)  # it is the next victim again, whichever start of the machine undid the first mark
        live.kill_both(daemon)
        live.outrace("unload", "--holds", "--state-dir", str(daemon.state_dir))
        assert values(hogs) == list(OWN)

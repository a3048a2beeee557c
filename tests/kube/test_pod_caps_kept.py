"""Limits of evicted pods that are outrace's to lift, and those that are not its any more."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from monitor.kernel import cgroupfs
from monitor.pods.model import FoundPod
from monitor.side.cluster import pod_caps
from monitor.side.cluster.pod_caps import FLOOR
from monitor.side.cluster.record import Record
from tests.kube.test_pod_caps import FILE, MIB, Caps, value
from tests.kube.test_pod_caps import caps as caps
from tests.kube.test_pod_caps import node as node

pytestmark = pytest.mark.kernel


def test_one_that_is_being_limited_is_not_forgotten(caps: Caps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody would lift its limit."""
    monkeypatch.setattr(pod_caps, "_MOST_WANTED", 1)
    cgroup, there = caps.pod("web"), cgroupfs.exists
    before = value(cgroup)

    def looked(path: Path) -> bool:
        for uid in ("a", "b", "c"):
            caps.caps.late(Record(f"{uid}.1", "default", uid, uid, 0.0, {}, ()))
        return there(path)

    monkeypatch.setattr(cgroupfs, "exists", looked)
    caps.late("web")
    assert value(cgroup) == str(FLOOR)
    caps.caps.lift_all("test")
    assert value(cgroup) == before


def test_a_defect_with_one_pod_does_not_end_the_thread(caps: Caps) -> None:
    caps.pods["bad"] = cast("FoundPod", object())
    caps.late("bad")
    cgroup = caps.pod("web")
    caps.late("web")
    assert (value(cgroup), caps.caps.failures) == (str(FLOOR), 2)


def test_what_somebody_else_wrote_is_let_alone_while_the_status_is_still_tried(caps: Caps) -> None:
    """Until the pod is evicted again."""
    cgroup = caps.pod("web")
    caps.late("web")
    (cgroup / FILE).write_text(str(80 * MIB))
    for _ in range(3):
        caps.caps.turn()
    assert (value(cgroup), caps.caps.total, caps.journal.load()) == (str(80 * MIB), 1, [])
    caps.late("web")
    assert value(cgroup) == str(FLOOR)

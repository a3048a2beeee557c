"""All memory of a machine is taken, for real: only in a guest of 512 MiB that may be lost (`make test-vm`)."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import cgroupfs, meminfo
from monitor.lab.child import Child
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod
from monitor.side.incidents import IncidentReader
from tests import live

pytestmark = [pytest.mark.kernel, pytest.mark.expendable]

#: MiB/s. From the threshold to the end it takes half a second then, which an emulated machine needs too; slower, it
#: spends a minute reading program text again and again before the kernel gives up.
RATE = 400
#: It may do so even here, where the machine that emulates it is busy.
PATIENCE_S = 300.0
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


@pytest.fixture(scope="module", autouse=True)
def machine() -> Iterator[None]:
    """Without overcommitting, the hogs would be refused their memory instead of being killed for it."""
    live.pin_dir()  # compiled before memory is scarce: it takes 150 MB
    OVERCOMMIT.write_text("1")
    yield
    OVERCOMMIT.write_text("0")


#: The pods of the machine; their common cgroup has more than the machine, so it is never the limit.
node = live.fixture(LabNode, "test-global", 1 << 40)


def below_now(mib: int) -> str:
    """A threshold that is crossed when ``mib`` are taken, the daemon's own 90 MiB among them."""
    # The compiler's pages are in the page cache: giving them up one by one would be a minute of thrashing.
    Path("/proc/sys/vm/drop_caches").write_text("1")
    hierarchy, total = cgroupfs.detect(), meminfo.mem_total()
    available = cgroupfs.read_cgroup(hierarchy, hierarchy.root, total).available
    threshold = available // MIB - mib
    assert threshold > 100, f"{available // MIB} MiB are too few to begin with"
    return f"memory.available<{threshold}Mi"


def hog(node: LabNode, pod: LabPod, rate: int = RATE) -> Child:
    """A process with the score that a kubelet gives it, so that the kernel kills no other process."""
    made = node.start_hog(pod, mib=1024, rate=rate)
    Path(f"/proc/{made.pid}/oom_score_adj").write_text("1000")
    return made


def incident(daemon: LabDaemon) -> dict[str, Any]:
    """The one that it stored; the daemon has ended then.

    Page cache that comes and goes near the threshold may be an incident too, in which nothing happened (`relieved`).
    """

    def final() -> list[str]:
        found = [one for one in live.messages(daemon, "incident") if one.get("final")]
        return [str(one["id"]) for one in found if one["verdict"] != "relieved"]

    live.until(final, "the incident to be final")
    live.ended(daemon)
    (name,) = final()
    return next(dict(one) for one in IncidentReader(live.state_dir() / "incidents").all() if one["id"] == name)


def watching(node: LabNode, *options: str) -> LabDaemon:
    return live.daemon(node, "--eviction-hard", below_now(130), *options, machine=True)


def test_observing_it_lives_through_it_and_reports_who_won(node: LabNode) -> None:
    pod = node.add_pod("hog")
    with watching(node) as daemon:
        pids = [daemon.pid, *live.children(daemon.pid)]
        victim = hog(node, pod)
        victim.go()
        assert victim.wait(PATIENCE_S) == -signal.SIGKILL
        logged = live.message(daemon, "the kernel's OOM killer killed a process", victim_pid=victim.pid)
        assert (logged["pod"], logged["oom_score_adj"]) == ("lab/hog", 1000)
        assert daemon.metrics()['outrace_oom_kills_total{scope="global"}'] == 1
        assert [daemon.pid, *live.children(daemon.pid)] == pids
        assert all(live.alive(pid) for pid in pids)
        assert daemon.get("/healthz")[0] == 200
        found = incident(daemon)
    # Seconds lie between the decision and the kill, and what the pod held is all that grew.
    assert (found["verdict"], found["observed"]) == ("eviction_won", True)
    # Observed, it lives on: while the kernel reclaims and nothing grows, an eviction would be held (7.2).
    assert set(found["flags"]) - {"braked"} == {"global"}
    assert found["domain"] == "node"
    assert [(v["pid"], v["pod"]) for v in found["oom_victims"]] == [(victim.pid, "lab/hog")]
    assert found["margin_ms"] > 0


def test_a_kill_that_sysrq_asked_for_is_no_race(node: LabNode) -> None:
    """`echo f > /proc/sysrq-trigger` with plenty of memory: the kernel takes the largest process."""
    pod = node.add_pod("asked")
    with watching(node) as daemon:
        victim = node.fill(pod, 8, rate=RATE)
        Path(f"/proc/{victim.pid}/oom_score_adj").write_text("1000")
        Path("/proc/sysrq-trigger").write_text("f")
        assert victim.wait(PATIENCE_S) == -signal.SIGKILL
        found = incident(daemon)
    assert (found["verdict"], found["flags"], found["evicted"]) == ("own_limit", ["by_hand"], [])
    assert [(v["pid"], v["pod"]) for v in found["oom_victims"]] == [(victim.pid, "lab/asked")]
    assert "a manual OOM kill (SysRq f) took lab/asked" in found["summary"]


@pytest.mark.parametrize("trigger", ["user", "kernel"])
def test_enforcing_it_wins(node: LabNode, trigger: str) -> None:
    before, pod = live.vmstat()["oom_kill"], node.add_pod("hog")
    with watching(node, "--enforce", "--trigger", trigger) as daemon:
        assert int(Path(f"/proc/{daemon.pid}/oom_score_adj").read_text()) == -999
        victim = hog(node, pod, rate=0)
        victim.go()
        assert victim.wait(PATIENCE_S) == -signal.SIGKILL
        live.message(daemon, "evicted")
        found = incident(daemon)
    assert live.vmstat()["oom_kill"] == before, "the OOM killer was first"
    assert (found["verdict"], found["flags"], found["observed"]) == ("eviction_won", [], False)
    assert ([e["pod"] for e in found["evicted"]], found["oom_victims"]) == (["lab/hog"], [])


@pytest.mark.skipif(cgroupfs.detect().version == 1, reason="memory.oom.group is cgroup v2's")
def test_a_group_dies_together(node: LabNode) -> None:
    pod = node.add_pod("family")
    (pod.containers["c0"] / "memory.oom.group").write_text("1")
    with watching(node) as daemon:
        siblings = [node.fill(pod, 8) for _ in range(2)]
        victim = hog(node, pod)
        victim.go()
        assert [one.wait(PATIENCE_S) for one in (victim, *siblings)] == [-signal.SIGKILL] * 3
        found = incident(daemon)
    assert set(found["flags"]) - {"braked"} == {"global", "group_kill"}  # as above: no pod is evicted
    assert {v["pid"] for v in found["oom_victims"]} == {one.pid for one in (victim, *siblings)}
    assert {v["pod"] for v in found["oom_victims"]} == {"lab/family"}

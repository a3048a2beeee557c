"""`outrace explain POD`: why it would be next or not, what would change that, and its OOM scores, wanted and real."""

import json
import os
import select
import signal
from pathlib import Path

import pytest

from monitor.lab.node import LabNode
from tests.cli.explain_node import explain, explained_node, names, text
from tests.live import MIB, Puppet
from tests.puppet import TIMEOUT_S

node = pytest.fixture(explained_node, scope="module")


@pytest.mark.parametrize("how", ["label", "uid", "name"])
def test_a_pod_is_found_by(node: LabNode, how: str) -> None:
    pod = node.pods["besteffort"]
    wanted = {"label": "lab/besteffort", "uid": pod.uid, "name": "besteffort"}[how]
    found = explain(node, wanted)["pod"]
    assert (found["pod"], found["uid"], found["cgroup"]) == ("lab/besteffort", pod.uid, str(pod.cgroup))
    assert (found["rank"], found["of"], found["next"]) == (2, 4, False)


def test_why_it_would_be_next(node: LabNode) -> None:
    pod = explain(node, "burstable")["pod"]
    assert (pod["next"], pod["rank"]) == (True, 1)
    assert pod["qos"] == {"class": "Burstable", "why": "not Guaranteed: container c0 has no cpu limit"}
    assert pod["request"]["value"] == 8 * MIB
    (behind,) = pod["against"]
    assert (behind["role"], behind["pod"], behind["goes_first"]) == ("behind it", "lab/besteffort", False)
    assert [c["name"] for c in behind["comparisons"] if c["decides"]] == ["excess"]
    assert [change["kind"] for change in behind["changes"]] == ["request", "priority", "usage"]
    shown = text(node, "burstable")
    assert "lab/burstable: rank 1 of 4, the next to be evicted for memory.available\n" in shown
    assert "to be passed over: raise the memory request of container c0 from 8388608 to " in shown


def test_the_change_it_names_works_on_the_node(node: LabNode) -> None:
    pod = node.pods["burstable"]
    change = explain(node, "burstable")["pod"]["against"][0]["changes"][0]
    before = pod.manifest.read_text()
    try:
        # The pods' memory may have moved by a page or so since: see tests/policy/test_explain.py for the very byte.
        for request, first in ((change["new"] + MIB, "lab/besteffort"), (change["new"] - MIB, "lab/burstable")):
            manifest = json.loads(before)
            manifest["spec"]["containers"][0]["resources"]["requests"]["memory"] = str(request)
            pod.manifest.write_text(json.dumps(manifest))
            assert names(explain(node))[0] == first
    finally:
        pod.manifest.write_text(before)


def test_why_it_would_not_be_next(node: LabNode) -> None:
    pod = explain(node, "guaranteed")["pod"]
    assert (pod["next"], pod["rank"], pod["critical"]["critical"]) == (False, 4, False)
    first, before = pod["against"]  # nobody is behind it, and the critical pod in between does not count
    assert (first["role"], first["pod"]) == ("first victim", "lab/burstable")
    assert (before["role"], before["pod"]) == ("before it", "lab/besteffort")
    assert all(other["goes_first"] for other in pod["against"])
    assert [c["name"] for c in first["comparisons"] if c["decides"]] == ["usage"]
    (more,) = first["changes"]
    assert more["kind"] == "usage"
    assert more["new"] > 64 * MIB
    critical = explain(node, "critical")["pod"]
    assert critical["critical"] == {"critical": True, "why": "priority 2000000000"}
    assert critical["eviction"] is None
    assert all(other["changes"] == [] for other in critical["against"])
    assert "lab/critical: never evicted (it would be rank 3 of 4) for memory.available\n" in text(node, "critical")


def test_scores_wanted_and_real(node: LabNode) -> None:
    found = explain(node, "besteffort")["pod"]
    scores, killer = found["oom_score_adj"], found["badness"]
    assert scores["containers"] == [{"name": "c0", "wanted": 1000, "processes": 1}]
    (hog,) = [h for h in node.children if h.pid == killer["pod"]["pid"]]
    assert scores["mismatches"] == [{"container": "c0", "pid": hog.pid, "is_now": 0, "should_be": 1000}]
    Path(f"/proc/{hog.pid}/oom_score_adj").write_text("1000")
    found = explain(node, "besteffort")["pod"]
    assert found["oom_score_adj"]["mismatches"] == []
    own = found["badness"]["pod"]
    assert found["badness"]["total_pages"] == 256 * MIB // 4096  # the lab's nodes do not swap
    pages = (own["rss"] + own["swap"] + own["page_tables"]) // 4096
    assert own["points"] == pages + 1000 * (65536 // 1000)
    assert found["badness"]["node"] == own
    # The kernel would take it, the policy would not: that is shown.
    assert "the policy would evict lab/burstable first" in found["badness"]["differs"]
    assert "every process has what it should" in text(node, "besteffort")


def test_the_kernel_kills_whom_it_names() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with LabNode("test-explain-oom", 192 * MIB) as node:
        big, small = node.add_pod("big"), node.add_pod("small")
        with Puppet(big.containers["c0"]) as growing, Puppet(small.containers["c0"]) as marked:
            # 900 x 48 pages of 4 KiB are 168 MiB: with them it stays ahead whatever the big one takes. And it has
            # enough to give: exit_mmap() gathers up to 10000 pages (40 MiB) that come back only after the victim no
            # longer counts as one, and until then the kernel may take a second one.
            marked.do("open('/proc/self/oom_score_adj', 'w').write('900')")
            marked.do("anon(100)")
            growing.do("anon(60)")
            found = explain(node, "big")["pod"]["badness"]
            assert (found["node"]["pid"], found["pod"]["pid"]) == (marked.pid, growing.pid)
            ends = [os.pidfd_open(puppet.pid) for puppet in (marked, growing)]
            growing.tell("anon(40)")
            assert select.select(ends, [], [], TIMEOUT_S)[0] == ends[:1]
            for fd in ends:
                os.close(fd)
            assert marked.wait() == -signal.SIGKILL
            assert growing.answer() == "done"
            assert node.oom_kills() == 1

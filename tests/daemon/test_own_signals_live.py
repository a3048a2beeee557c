"""A daemon with thresholds by outrace's own signals, on every rung that this machine has."""

import pytest

from monitor.kernel.charging import POLL
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import LabNode
from tests import live

MIB = live.MIB
pytestmark = [pytest.mark.kernel, pytest.mark.previous]  # some minutes in an emulated guest


@pytest.mark.parametrize("hooks", ["auto", POLL])
def test_page_cache_evicts_nobody_and_growth_does(hooks: str) -> None:
    """110 MiB of page cache in 160, read again and again, stay whatever the kubelet's line says; then a pod takes what
    there is, page cache included, and is evicted at the line.
    """
    hard = "memory.reclaimable<32Mi"
    with LabNode("own-signals", 160 * MIB) as node:
        reader, hog = node.add_pod("reader", priority=1), node.add_pod("hog")
        with LabDaemon(node, "--enforce", "--hooks", hooks, "--eviction-hard", hard) as daemon:
            if hooks != "auto":
                assert live.rung(daemon) == hooks
            node.fill(reader, 130, kind="file", sync=1, reread=3, rate=200)
            available = 'signal_available_bytes{signal="memory.reclaimable"}'
            live.until(lambda: live.metric(daemon, available) >= 140 * MIB, "page cache to count as available")
            assert live.messages(daemon, "evicted") == []
            live.killed_hog(node, hog, 200, rate=50)
            live.message(daemon, "evicted", pod="lab/hog")
            incident = live.message(daemon, "incident", final=True)
            assert (incident["verdict"], incident["flags"]) == ("eviction_won", [])
            assert node.oom_kills() == 0
            assert [record["pod"] for record in live.messages(daemon, "evicted")] == ["lab/hog"]
            assert live.metric(daemon, 'decisions_total{mode="enforce",signal="memory.reclaimable"}') == 1

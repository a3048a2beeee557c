"""`outrace top` on a real daemon: one that goes away and comes back, and pods with limits, which /metrics has too."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import meminfo
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from tests import live
from tests.daemon.hot_node import hard, hot_node
from tests.limited import limit
from tests.terminals import seat

pytestmark = [pytest.mark.kernel, pytest.mark.once]

TOP = (sys.executable, "-m", "monitor.cli.main", "top")

node = live.fixture(LabNode, "top", 256 * MIB)
small = live.fixture(hot_node)


def test_a_daemon_that_goes_away_and_comes_back_with_another_threshold(
    node: LabNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.filled(node, node.add_pod("web", "Burstable", request=32 * MIB), 20)
    state = tmp_path / "one"
    monkeypatch.setenv("OUTRACE_RUN_DIR", str(state))
    common = ("--hooks", "poll", "--mode", "hold")
    with (
        LabDaemon(node, *common, *hard(48), state_dir=state) as first,
        seat(*TOP, columns=80, rows=24, cwd=live.ROOT) as made,
    ):
        made.shows("outrace top  one hold poll", "memory.available<48Mi", "lab/web", "no record lost")
        first.stop()
        made.shows("outrace top  one does not answer", "lab/web")
        assert "no record lost" not in made.screen.text
        made.press("s")
        made.shows("by used")  # keys are answered meanwhile
        with LabDaemon(node, *common, *hard(64), state_dir=state):
            made.shows("outrace top  one hold poll", "memory.available<64Mi", "lab/web", "no record lost")
            assert "48Mi" not in made.screen.text
            assert "does not answer" not in made.screen.text
        made.press("q")
        assert made.end() == 0
        assert made.screen.overflows == 0


# Limits.
def top(daemon: LabDaemon) -> tuple[dict[str, Any], dict[str, Any]]:
    """The node of a frame, and its pods by name."""
    done = live.outrace("top", "--once", "-o", "json", asking=daemon)
    assert (done.returncode, done.stderr) == (0, "")
    frame = json.loads(done.stdout)
    return frame["node"], {pod["name"]: pod for pod in frame["pods"]}


def reported(daemon: LabDaemon, pod: str) -> dict[str, float]:
    """Limit -> bytes, of a pod of /metrics."""
    start, end = 'outrace_pod_memory_limit_bytes{limit="', f'",namespace="lab",pod="{pod}"}}'
    return {
        series.removeprefix(start).removesuffix(end): value
        for series, value in daemon.metrics().items()
        if series.startswith(start) and series.endswith(end)
    }


# It takes a guest 1.6 times as long as a race of test_ladder.py (101 and 64 s, measured on 6.12 beside three others).
# What is different on v2, the files, tests/kernel/test_limits.py reads there.
def test_limits_are_shown_and_followed(small: LabNode) -> None:
    limited, _ = small.add_pod("limited"), small.add_pod("plain")
    wanted = limit(limited.cgroup, 48)
    with live.daemon(small, *hard(20)) as daemon:
        live.until(lambda: live.metric(daemon, "pods") == 2, "both pods")
        whole, pods = top(daemon)
        assert pods["limited"]["limits"] == wanted.named()
        assert pods["limited"]["oom_group"] == wanted.oom_group
        assert set(pods["plain"]["limits"].values()) == {None}
        assert whole["limits"]["max"] == small.memory_bytes
        present = {name: value for name, value in wanted.named().items() if value is not None}
        live.until(lambda: reported(daemon, "limited") == present, "the limits in /metrics")
        assert reported(daemon, "plain") == {}
        assert live.metric(daemon, 'memory_limit_bytes{domain="node",limit="max"}') == small.memory_bytes

        # A limit changed by anybody is seen; what is shown is a second old at most.
        again = limit(limited.cgroup, 40).named()
        present = {name: value for name, value in again.items() if value is not None}
        live.until(lambda: reported(daemon, "limited") == present, "the new limits in /metrics")
        live.until(lambda: top(daemon)[1]["limited"]["limits"] == again, "the new limits in a frame")

        swap = [series for series in daemon.metrics() if "memory_swap_bytes" in series]
        assert bool(swap) == (swap_accounted(limited.cgroup) and meminfo.read()["SwapTotal"] > 0)
        small.remove_pod(limited)
        live.until(lambda: reported(daemon, "limited") == {}, "the pod to be gone from /metrics")
        live.ended(daemon)


def swap_accounted(cgroup: Path) -> bool:
    return any((cgroup / name).exists() for name in ("memory.swap.current", "memory.memsw.usage_in_bytes"))

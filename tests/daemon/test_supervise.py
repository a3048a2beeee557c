"""The side is started before the hot process exists, and handed over: then it is its child like any other."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from monitor.cli.bench_footprint import side_of
from monitor.daemon.config import SIDE, STATS_FD
from monitor.daemon.stats import SharedStats
from monitor.daemon.supervise import Side
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode


def test_without_a_side_handed_over_there_is_none_to_adopt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SIDE, raising=False)
    side = Side(-1, -1, -1)
    assert not side.adopt(0)
    assert (side.pid, side.sock) == (0, None)


def test_counters_are_inherited_by_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    page = SharedStats.create()
    page.add("passes", 7)
    monkeypatch.setenv(STATS_FD, str(os.dup(page.fd)))
    heir = SharedStats.inherit(STATS_FD)
    assert heir.get("passes") == 7
    assert not os.get_inheritable(heir.fd)
    assert STATS_FD not in os.environ
    assert SharedStats.inherit(STATS_FD).get("passes") == 0  # nothing is named any more: a new page
    os.close(heir.fd)
    os.close(page.fd)


@pytest.mark.kernel
def test_a_side_that_was_handed_over_is_reaped_and_replaced_when_it_dies(tmp_path: Path) -> None:
    with LabNode("supervise", 64 * MIB) as node:
        pod = node.add_pod("only")
        with LabDaemon(node, state_dir=tmp_path) as daemon:
            first = side_of(daemon)
            assert Path(f"/proc/{first}/comm").read_text() == "outrace-side\n"
            assert daemon.metrics()["outrace_side_starts_total"] == 1
            os.kill(first, signal.SIGKILL)
            told = daemon.wait_for(lambda r: "side process ended" in r.get("msg", ""), 20.0)
            assert told is not None, daemon.complaint()
            again = side_of(daemon)  # fails if the dead one was left as a zombie
            assert again != first
            twice = [r for r in daemon.log if r.get("msg") == "pod found"]
            while len(twice) < 2:
                more = daemon.wait_for(lambda r: r.get("msg") == "pod found", 20.0, len(daemon.log))
                assert more is not None, daemon.complaint()
                twice.append(more)
            assert [r["uid"] for r in twice] == [pod.uid, pod.uid]
            metrics = daemon.metrics()
            assert metrics["outrace_side_starts_total"] == 2
            assert metrics["outrace_pods"] == 1

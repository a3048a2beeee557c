"""Figures of pods as a kubelet has them: a hog that grew within seconds is not whom old figures choose."""

import json
from pathlib import Path

import pytest

from monitor.lab.node import MIB, LabNode
from monitor.side.recording import Reader
from tests import live

pytestmark = [pytest.mark.kernel, pytest.mark.once]

node = live.fixture(LabNode, "test-figure-age", 160 * MIB)


def test_the_hog_on_fresh_figures_and_the_pod_that_was_large_before_on_old_ones(node: LabNode, tmp_path: Path) -> None:
    """cart has 40 MiB all the time; the hog grows from nothing by 20 MiB/s, and has 80 where the threshold is crossed:
    cart's 40 it passed 2 s before.
    """
    cart, hog = node.add_pod("cart"), node.add_pod("hog")
    state, record = tmp_path / "state", tmp_path / "rec"
    threshold = ("--eviction-hard", "memory.available<32Mi")
    with live.daemon(node, *threshold, "--record", str(record), state_dir=state) as daemon:
        live.filled(node, cart, 40)
        live.until(lambda: json.loads(daemon.get("/stats/summary")[1])["outrace"]["workingSets"], "a look at the pods")
        grown = node.start_hog(hog, mib=400, rate=20)
        grown.go()
        live.message(daemon, "would evict")
        ended = live.message(daemon, "incident", final=True)
        shown = live.outrace("incidents", "show", ended["id"], "--state-dir", str(state), "-o", "json")
        assert shown.returncode == 0, shown.stderr
        found = json.loads(shown.stdout)
        text = live.outrace("incidents", "show", ended["id"], "--state-dir", str(state)).stdout
        live.ended(daemon)
    figures = next(each["figures"] for each in found["counterfactual"] if each["mode"] == "poll")
    assert figures["fresh"] == "lab/hog"
    assert figures["known_s"] > 2
    last = figures["by_age"][-1]
    assert (last["pod"], last["to_s"]) == ("lab/cart", figures["known_s"])
    assert set(figures["could"]) == {"lab/cart", "lab/hog"}
    assert "the wrong pod" in " ".join(text.split())
    with record.open("rb") as file:
        kinds = {one["v"]["event"] for one in Reader(file, "rec").records() if one["k"] == "event"}
    assert "workingsets" in kinds
    replayed = json.loads(live.outrace("replay", str(record), "-o", "json").stdout)
    assert [one["counterfactual"] for one in replayed["incidents"] if one["id"] == found["id"]] == [
        found["counterfactual"]
    ]

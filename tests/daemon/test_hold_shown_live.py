"""A hold of the live kernel as it is shown: log, metrics, top, and the incident that is stored."""

import json
from pathlib import Path

import pytest

from monitor.lab.node import MIB, LabNode
from monitor.side.incidents.reader import IncidentReader
from tests import live
from tests.daemon.hold_node import daemon, holding, pattern, released
from tests.daemon.hot_node import hot_node, up_to

pytestmark = [pytest.mark.kernel, pytest.mark.once]

node = live.fixture(hot_node)


def test_a_hold_is_logged_counted_shown_judged_and_replayed(node: LabNode, tmp_path: Path) -> None:
    hog = node.add_pod("hog")
    database = node.add_pod("database", "Guaranteed", request=64 * MIB)
    recording = tmp_path / "recording"
    with daemon(node, 32, "--record", str(recording)) as running:
        bystander = live.filled(node, database, 60)
        with live.Puppet(hog.containers["c0"]) as puppet:
            puppet.tell(pattern(up_to(node, 118)))
            holding(running, hog)
            said = live.message(running, "pod held", pod="lab/hog")
            assert said["usage"] <= said["cap"]
            assert live.metric(running, 'pods_held{reason="grows"}') + live.metric(
                running, 'pods_held{reason="victim"}'
            )
            assert live.metric(running, "longest_hold_seconds") > 0
            status, body = running.get("/stats/summary")
            (shown,) = json.loads(body)["outrace"]["held"]
            assert (status, shown["pod"], shown["cap"]) == (200, "lab/hog", said["cap"])
            bystander.free()
            assert puppet.answer() == "whole"
            released(hog)
            ended = live.message(running, "hold ended", pod="lab/hog", id=said["id"])
            assert (ended["why"], ended["held_ns"] > 0) == ("clear", True)
            live.until(lambda: live.metric(running, "longest_hold_seconds") == 0, "the metric to be back")
            assert live.metric(running, 'holds_ended_total{why="clear"}') == 1
            logged = live.message(running, "incident", final=True)
            live.ended(running)
        incidents = IncidentReader(running.state_dir / "incidents.db").all()
        found = next(one for one in incidents if one["id"] == logged["id"])  # tests share a state dir
        (held,) = found["holds"]
        assert (found["verdict"], "held" in found["flags"]) == ("relieved", True)
        assert (held["pod"], held["why"], held["by_kubelet"]) == ("lab/hog", "clear", False)
        assert held["ms"] == pytest.approx(ended["held_ns"] / 1e6, abs=0.01)
        assert {"pod_held", "pod_released"} <= {step["what"] for step in found["steps"]}
        assert "lab/hog was held for" in found["summary"]
        replayed = live.outrace("replay", str(recording), "-o", "json")
        assert replayed.returncode == 0, replayed.stderr
        again = json.loads(replayed.stdout)
        assert again["differences"] == []
        assert [one["holds"] for one in again["incidents"] if one["holds"]] == [found["holds"]]
        shown = live.outrace("incidents", "show", found["id"], "--state-dir", str(running.state_dir))
        assert "lab/hog held (" in shown.stdout
        assert "lab/hog is not held any more (clear) after" in shown.stdout

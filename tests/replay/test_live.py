"""Real races, recorded by a real daemon: the replay decides what the daemon decided, byte for byte."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.side.incidents import FOLDER, IncidentReader
from monitor.side.recording import Reader
from tests import live
from tests.daemon.hold_node import V2
from tests.replay.world import recorded

pytestmark = [pytest.mark.kernel, pytest.mark.once]

HARD = ("--eviction-hard", "memory.available<48Mi")

node = live.fixture(LabNode, "test-replay", 128 * MIB)


def replay(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return live.outrace("replay", *map(str, arguments))


def replayed(path: Path) -> dict[str, Any]:
    """What two replays print: the same, without complaint. (Passes before the first snapshot that the helper asked for
    are skipped: on a busy machine there are some.)
    """
    first, second = replay(path, "-o", "json"), replay(path, "-o", "json")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == second.stdout
    found: dict[str, Any] = json.loads(first.stdout)
    assert (found["differences"], found["gaps"], found["damage"]) == ([], [], None)
    return found


def decided(daemon: LabDaemon) -> list[dict[str, Any]]:
    """The daemon's decisions as its log has them, in the form of a replay."""
    records = [r for r in daemon.log if r.get("msg") in ("evicting", "would evict")]
    found = [recorded(record | {"name": record["pod"], "pod": record["uid"]}) for record in records]
    for one in found:  # `message` of a log line is the message to the pod; of a decision, the limit it is over
        if one["signal"] is not None:
            one.pop("message", None)
    return found


def check(daemon: LabDaemon, path: Path) -> dict[str, Any]:
    """Daemon and replay agree."""
    found = replayed(path)
    assert found["decisions"] == decided(daemon)
    stored = IncidentReader(daemon.state_dir / FOLDER).all()
    assert sorted(map(json.dumps, found["incidents"])) == sorted(map(json.dumps, stored))
    return found


@pytest.mark.parametrize("trigger", ["user", "kernel"])
def test_an_eviction(node: LabNode, tmp_path: Path, trigger: str) -> None:
    path, pod = tmp_path / "rec", node.add_pod("hog")
    node.add_pod("other")
    options = (*HARD, "--enforce", "--trigger", trigger, "--record", str(path))
    with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        live.killed_hog(node, pod, 90, rate=400)
        live.message(daemon, "evicted")
        live.message(daemon, "incident", final=True)
        assert live.metric(daemon, "recording_dropped_total") == 0
        live.ended(daemon)
        found = check(daemon, path)
    assert [(one["name"], one["observed"]) for one in found["decisions"]] == [("lab/hog", False)]
    # Others on this machine may run out of memory too: that is seen and recorded.
    assert [one["verdict"] for one in found["incidents"] if one["domain"] == "node"] == ["eviction_won"]
    assert path.stat().st_mode & 0o777 == 0o640


def test_killed_while_recording_it_replays_up_to_there(node: LabNode, tmp_path: Path) -> None:
    """First the helper (a new one records into a new file, the old one is kept), then everything at once."""
    path, pod = tmp_path / "rec", node.add_pod("hog")
    options = (*HARD, "--enforce", "--record", str(path))
    with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        side = live.children(daemon.pid)
        live.killed_hog(node, pod, 90, rate=400)
        live.message(daemon, "incident", final=True)
        before = live.metric(daemon, "recording_bytes")
        live.until(lambda: path.stat().st_size >= before > 0, "a flush")
        for pid in side:
            os.kill(pid, signal.SIGKILL)
        live.until(lambda: path.with_name("rec.1").exists(), "a new file of the new side")
        old = replay(path.with_name("rec.1"), "-o", "json")
        assert json.loads(old.stdout)["decisions"][0]["name"] == "lab/hog"
        assert old.returncode == (0 if json.loads(old.stdout)["damage"] is None else 1)
        live.until(
            lambda: json.loads(replay(path, "-o", "json").stdout or "{}").get("passes"), "passes in the new file"
        )
        sides = live.children(daemon.pid)
        daemon.process.kill()
        daemon.process.wait()
        for pid in sides:
            live.ends(pid)
    found = json.loads(replay(path, "-o", "json").stdout)
    assert found["passes"] > 0
    assert found["differences"] == []


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (("--mode", "hold", "--hold-limit", "1s"), 0),
        pytest.param(
            ("--mode", "enforce", "--hard-grace", "1s"),
            1,
            marks=pytest.mark.skipif(not V2, reason="--hard-grace needs cgroup v2: the guests of make test-vm have it"),
        ),
    ],
)
def test_a_pod_that_was_held(node: LabNode, tmp_path: Path, options: tuple[str, ...], given: int) -> None:
    """Until its time limit, or in its grace; another one until there is room again."""
    path, pod = tmp_path / "rec", node.add_pod("hog")
    database = node.add_pod("database", "Guaranteed", request=100 * MIB)
    with live.daemon(node, *HARD, *options, "--record", str(path), state_dir=tmp_path / "state") as daemon:
        hogs = [node.start_hog(one, mib=90, ignore_term=1) for one in (pod, database)]
        for hog in hogs:
            hog.go()
        hogs[0].wait()
        live.message(daemon, "evicted")
        live.until(lambda: live.metric(daemon, "holds_total") >= 1, "a hold")
        node.end(hogs[1])
        live.message(daemon, "incident", final=True)
        assert live.metric(daemon, "recording_dropped_total") == 0
        live.ended(daemon)
        found = check(daemon, path)
    assert {one["given_s"] for one in found["decisions"]} == {given}
    with path.open("rb") as file:
        assert any(record["k"] == "hold_look" for record in Reader(file, "rec").records())

"""Recordings of real races: commands of the lab with `OUTRACE_RECORD` in the environment of the daemons they start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: One command, and all of its daemons: more than it takes in an emulated guest.
MOST_S = 900
SCENARIOS = (
    *("evicted-beside-cache", "active-and-pinned", "only-the-kubelet", "evicted-hard"),
    *("full-speed", "evicted-soft", "ignores-term", "two-hogs"),
    *("tmpfs-hog", "fork-bomb", "over-eviction", "would-have-won", "burst", "stalled-monitor", "in-soft-period"),
    *("grace-too-long", "frozen-victim", "tmpfs-outlives", "no-threshold", "pinned-cache", "kubepods-limit"),
    *("wrong-victim", "braked", "own-limit", "sidecar", "pod-limit", "group-kill", "relieved"),
    *("relieved-in-soft-period", "active-flood", "cache-flood", "user-kill", "already-exiting", "lost-records"),
    "record-stops",
)
#: Setting -> its value, and the scenarios that are played with it too. Their verdict may be another one then.
VARIANTS = (
    ("trigger", "kernel", ("evicted-hard", "two-hogs", "tmpfs-hog", "fork-bomb", "full-speed", "ignores-term")),
    ("hard_grace", "1s", ("evicted-hard", "two-hogs", "fork-bomb", "tmpfs-hog", "full-speed", "braked")),
    ("mode", "hold", ("would-have-won", "relieved", "kubepods-limit", "stalled-monitor")),
    ("mode", "observe", ("braked", "wrong-victim")),
    ("policy", "kubelet-1.17", ("evicted-hard", "evicted-soft", "two-hogs", "kubepods-limit")),
    ("policy", "kubelet-1.8", ("evicted-hard", "evicted-soft", "two-hogs", "wrong-victim")),
    ("hooks", "poll", ("evicted-hard", "relieved", "own-limit", "user-kill", "would-have-won")),
    ("hooks", "kprobe", ("evicted-hard", "active-flood")),
)
LOADS = ("4k", "thp", "tmpfs", "fork", "populate", "one-write")


def commands() -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """Name of the recording, settings of its daemons, words of the command."""
    for name in SCENARIOS:
        yield f"scenario-{name}", {}, ["bench", "scenarios", "--only", name, "--runs", "2"]
    for setting, value, names in VARIANTS:
        for name in names:
            words = ["bench", "scenarios", "--only", name, "--runs", "1"]
            shorter = {"hold_limit": "3s"} if value == "hold" else {}
            yield f"scenario-{name}-{setting}-{value}", {setting: value, **shorter}, words
    hold = ["bench", "race", "--mode", "hold", "--runs", "1", "--hogs", "2"]
    for load in LOADS:
        yield f"hold-{load}", {}, [*hold, "--margin", "32Mi", "--load", load]
    for hogs, trigger in ((1, "user"), (4, "user"), (4, "kernel")):
        yield f"race-{hogs}-{trigger}", {}, ["demo", "--runs", "2", "--hogs", str(hogs), "--trigger", trigger]
    yield "race-thp", {}, ["demo", "--runs", "2", "--thp", "--margin", "16Mi"]
    for mode in ("enforce", "hold"):
        yield f"kills-{mode}", {}, ["bench", "kills", "--runs", "4", "--seed", "1", "--mode", mode]


def record(into: Path, only: str) -> None:
    """Play those whose names are like one of ``only`` (patterns, with commas), one after the other. What a daemon could
    not record is reported, and left out.
    """
    for name, settings, words in commands():
        if not any(fnmatchcase(name, pattern) for pattern in only.split(",")):
            continue
        # A path that says nothing of this machine: it is in the recording.
        with tempfile.TemporaryDirectory(prefix="outrace-oracle-") as made:
            environment = {
                f"OUTRACE_{key.upper()}": value for key, value in (settings | {"record": f"{made}/rec"}).items()
            }
            command = [sys.executable, "-m", "monitor.cli.main", *words, "-o", "json"]
            try:
                done = subprocess.run(
                    command, cwd=ROOT, env=os.environ | environment, timeout=MOST_S, capture_output=True, check=False
                )
                print(f"{name}: exit code {done.returncode} {done.stderr.decode()[-300:]}", file=sys.stderr, flush=True)
            except subprocess.TimeoutExpired:
                print(f"{name}: not over after {MOST_S} s", file=sys.stderr, flush=True)
            for number, path in enumerate(sorted(Path(made).glob("rec*"))):
                shutil.copy(path, into / f"{name}.{number}.rec")

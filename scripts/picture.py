"""The picture of README.md: one race twice, first only observed, then under --enforce.

    .venv/bin/python scripts/picture.py            draws docs/pictures/race.svg from docs/pictures/race.json
    .venv/bin/python scripts/picture.py --record   runs both races first, as root, and writes the JSON (20 s)

A node of 384 MiB: shop/db has 190 MiB and requests 38 of them, jobs/batch grows by 130 MiB/s in four processes.
A third race, lost under --enforce by a grace period that was too long, is recorded for the page of an incident alone.
The curve is the node's usage, read every 2 ms beside the daemon; the events are those of the stored incident.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monitor.cli import svg
from monitor.cli.svg import Markup

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs/pictures/race.json"
PICTURE = ROOT / "docs/pictures/race.svg"

MIB = 1 << 20
NODE_MIB, DATABASE_MIB, REQUEST_MIB, THRESHOLD_MIB = 384, 190, 38, 24
PROCESSES, RATE_MIB = 4, 130
SAMPLE_S = 0.002
FROM_MS, TO_MS = -1000, 700

# -- recording ---------------------------------------------------------------------------------------------------------


HARD = ("--eviction-hard", f"memory.available<{THRESHOLD_MIB}Mi")
#: A soft threshold whose grace period no race waits for; of the hard one nothing but its last byte.
LATE = ("--eviction-hard", "memory.available<1", "--eviction-soft", "memory.available<64Mi",
        "--eviction-soft-grace-period", "memory.available=20s")  # fmt: skip


def race(thresholds: Sequence[str], enforce: bool) -> dict[str, Any]:
    """One race on this kernel: the curve and the incident, in milliseconds from the crossing. Raises MonitorError."""
    from monitor.lab.daemon import LabDaemon
    from monitor.lab.node import LabNode

    options = [*thresholds, *(["--enforce"] if enforce else [])]
    with LabNode("picture", NODE_MIB * MIB) as node:
        database = node.add_pod("db", "Burstable", request=REQUEST_MIB * MIB, namespace="shop")
        batch = node.add_pod("batch", "BestEffort", namespace="jobs")
        # As a kubelet sets it: 1000 for BestEffort, for Burstable less the part of the node that is requested.
        score(node.fill(database, DATABASE_MIB).pid, 1000 - 1000 * REQUEST_MIB // NODE_MIB)
        mib, rate = NODE_MIB // PROCESSES, RATE_MIB // PROCESSES
        hogs = [node.start_hog(batch, mib=mib, rate=rate) for _ in range(PROCESSES)]
        for hog in hogs:
            score(hog.pid, 1000)
        with LabDaemon(node, *options) as daemon:
            samples: list[tuple[int, int]] = []
            done = threading.Event()

            def sample() -> None:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)  # the hogs take both CPUs
                while not done.wait(SAMPLE_S):
                    samples.append((time.monotonic_ns(), node.usage()))

            sampler = threading.Thread(target=sample)
            sampler.start()
            try:
                for hog in hogs:
                    hog.go()
                decided = daemon.told("evicting" if enforce else "would evict", 20)
                time.sleep(TO_MS / 1000)
            finally:
                done.set()
                sampler.join()
            for hog in hogs:
                node.end(hog)
            daemon.told("incident", 20)
            time.sleep(1)  # the last version of the incident is stored when its episode is over
            incident = show(daemon.state_dir)
    return {"incident": incident, "available_mib": available(samples, decided["crossed_ns"])}


def available(samples: Sequence[tuple[int, int]], zero_ns: int) -> list[list[float]]:
    """The curve that is drawn: [ms from the crossing, MiB that are available]."""
    curve = [[round((at - zero_ns) / 1e6, 1), round(NODE_MIB - usage / MIB, 2)] for at, usage in samples]
    return [point for point in curve if FROM_MS <= point[0] <= TO_MS]


def score(pid: int, value: int) -> None:
    Path(f"/proc/{pid}/oom_score_adj").write_text(str(value))


def show(state_dir: Path) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "monitor.cli.main", "incidents", "show", "latest"]
    options = ["-o", "json", "--state-dir", str(state_dir)]
    environment = {"PYTHONPATH": str(ROOT)}
    answer = subprocess.run([*command, *options], check=True, stdout=subprocess.PIPE, env=environment)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


# -- drawing -----------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 900, 330, 56, 58, 46, 24
PANEL = (WIDTH - LEFT - GAP - 12) / 2


def steps(incident: Mapping[str, Any], what: str) -> list[Mapping[str, Any]]:
    return [step for step in incident["steps"] if step["what"] == what]


def caption(incident: Mapping[str, Any]) -> tuple[float, str, Sequence[str]]:
    """How the race ended: milliseconds from the crossing, the colour, and the lines that say it."""
    if incident["oom_victims"]:
        killed = incident["oom_victims"][0]
        [mark, *_] = steps(incident, "oom")
        said = f"the OOM killer kills {killed['pod']}", f"{mark['t_ms']:.0f} ms after the threshold was crossed"
        return mark["t_ms"], svg.RED, said
    [signal, *_] = steps(incident, "sigkill")
    left = incident["margin_bytes"] / MIB
    said = (
        f"outrace evicts {incident['evicted'][0]['pod']}",
        f"after {signal['t_ms']:.2f} ms, with {left:.0f} MiB to spare",
    )
    return signal["t_ms"], svg.GREEN, said


def panel(x0: float, title: str, found: Mapping[str, Any], top_mib: float) -> list[Markup]:
    bottom = HEIGHT - BOTTOM
    x, y = svg.Scale(FROM_MS, TO_MS, x0, x0 + PANEL), svg.Scale(0, top_mib, bottom, TOP)
    out = [svg.text(x0, TOP - 18, title, size=15), svg.line(x0, bottom, x0 + PANEL, bottom, svg.GREY)]
    for ms in svg.ticks(FROM_MS, TO_MS, 4):
        out.append(svg.line(x(ms), bottom, x(ms), bottom + 4, svg.GREY))
        out.append(svg.text(x(ms), bottom + 18, f"{ms / 1000:g} s", svg.GREY, 12, "middle"))
    out.append(svg.line(x0, y(THRESHOLD_MIB), x0 + PANEL, y(THRESHOLD_MIB), svg.GREY, "5 4"))
    threshold = f"threshold: memory.available<{THRESHOLD_MIB}Mi"
    out.append(svg.text(x0 + 4, y(THRESHOLD_MIB) + 14, threshold, svg.GREY, 12))
    out.append(svg.curve([(x(ms), y(max(mib, 0))) for ms, mib in found["available_mib"]], svg.BLUE))
    at, colour, said = caption(found["incident"])
    out.append(svg.line(x(at), TOP + 42, x(at), bottom, colour, "2 3"))
    for number, words in enumerate(said):
        out.append(svg.text(min(x(at), x0 + PANEL - 140), TOP + 18 + 17 * number, words, colour, 13, "middle"))
    return out


def draw(record: Mapping[str, Any]) -> str:
    """The SVG of a record. It needs nothing else: no font, style or script from elsewhere."""
    top_mib = 1.35 * max(mib for each in ("observe", "enforce") for _, mib in record[each]["available_mib"])
    y = svg.Scale(0, top_mib, HEIGHT - BOTTOM, TOP)
    body = panel(LEFT, "outrace run: it only observes", record["observe"], top_mib)
    body += panel(LEFT + PANEL + GAP, "outrace run --enforce", record["enforce"], top_mib)
    for mib in svg.ticks(0, top_mib, 8):
        body.append(svg.text(LEFT - 8, y(mib) + 4, f"{mib:g}", svg.GREY, 12, "end"))
    body.append(svg.text(8, 18, "MiB available in the node", svg.GREY, 12))
    where = f"time from the crossing of the threshold; {record['where']}"
    body.append(svg.text(WIDTH - 12, HEIGHT - 6, where, svg.GREY, 12, "end"))
    return svg.picture(WIDTH, HEIGHT, "One race, lost and won", *body) + "\n"


def main() -> None:
    made = argparse.ArgumentParser(description="Draw the picture of README.md.")
    made.add_argument("--record", action="store_true", help="run the races first (as root)")
    if made.parse_args().record:
        kernel = platform.release().partition("-")[0]
        where = f"recorded on Linux {kernel}, {len(os.sched_getaffinity(0))} CPUs"
        found = {"where": where, "observe": race(HARD, enforce=False), "enforce": race(HARD, enforce=True)}
        found["lost"] = {"incident": race(LATE, enforce=True)["incident"]}
        RECORD.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    PICTURE.write_text(draw(json.loads(RECORD.read_text())))


if __name__ == "__main__":
    main()

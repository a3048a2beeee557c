"""`outrace bench pods`, `footprint` and `giveback` on the live kernel, for seconds instead of minutes: what they
print, what must hold, that nothing is left behind. How fast anything was is not asserted.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import cgroupfs, pins
from monitor.lab import bench_footprint, bench_pods
from tests.pin_instances import state_directory

ROOT = Path(__file__).resolve().parents[2]


def run_bench(directory: Path, name: str, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run it as a user does, temporary files in ``directory``; its exit code and rows. Checks what all keep."""
    bench = subprocess.Popen(
        [sys.executable, "-m", "monitor.cli.main", "bench", name, *options, "-o", "json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = bench.communicate(timeout=300)
    assert out, err
    answer = json.loads(out)
    assert answer["bench"] == name
    assert not (cgroupfs.detect().root / f"outrace-{name}-{bench.pid}").exists()
    assert not list(directory.iterdir())
    owners = [state_directory(instance) for instance in (pins.ROOT.iterdir() if pins.ROOT.is_dir() else ())]
    assert not [owner for owner in owners if owner is not None and owner.is_relative_to(directory)]
    return bench.returncode, {row["name"]: row for row in answer["results"]}


@pytest.mark.kernel
@pytest.mark.once
def test_bench_pods_misses_no_crossing_and_leaves_no_pod_behind(tmp_path: Path) -> None:
    code, rows = run_bench(tmp_path, "pods", "--duration", "3", "--pods", "6", "--period", "0.3")
    crossings = rows["crossings"]
    assert crossings["made"] >= 2
    assert crossings["seen"] == crossings["made"]
    assert crossings["missed"] == crossings["strange"] == 0
    for kind in bench_pods.RECORDS:
        assert rows[f"records_{kind}"]["kernel"] == rows[f"records_{kind}"]["reader"]
    assert rows["records_cross"]["kernel"] >= crossings["made"]
    assert rows["lost"] == {"name": "lost", "events": 0}
    assert rows["pods"] == {"name": "pods", "manifests": 6, "gauge": 6, "series": 6, "stale": 0, "absent": 0}
    for process in ("hot", "side"):
        assert rows[f"{process}_rss"]["p50"] > 0
        assert rows[f"{process}_rss_growth"]["unit"] == "bytes"
    grew = any(bench_pods.differs(rows[f"{process}_rss_growth"]) for process in ("hot", "side"))
    assert code == (4 if grew else 0)


@pytest.mark.kernel
@pytest.mark.once
def test_bench_footprint_measures_starts_memory_and_idle_cpu(tmp_path: Path) -> None:
    code, rows = run_bench(tmp_path, "footprint", "--runs", "1", "--pods", "3", "--idle", "0.5")
    assert code == 0
    for name in ("ready_first", "ready_cold", "ready_warm"):
        assert rows[name]["unit"] == "ms"
        assert rows[name]["p50"] > 0
    for after in ("", "_scraped"):
        hot, tree = rows[f"rss_hot{after}"], rows[f"rss_tree{after}"]
        assert 0 < hot["p50"] < tree["p50"]
        assert 0 < rows[f"pss_tree{after}"]["p50"] <= tree["p50"]
    for process in ("hot", "side"):
        assert rows[f"idle_{process}"]["unit"] == "ms/min"
        assert rows[f"idle_{process}"]["p50"] >= 0
    assert {name for name, row in rows.items() if "target" in row} == set(bench_footprint.TARGETS)


@pytest.mark.kernel
@pytest.mark.once
def test_bench_latency_measures_the_monitor_and_the_floor_in_turns(tmp_path: Path) -> None:
    code, rows = run_bench(tmp_path, "latency", "--floor-only", "--kills", "3", "--turns", "1", "--pods", "4")
    assert code == 0
    for label in ("quiet", "beside_compilers", "with_churn"):
        floor, ours = rows[f"floor_to_sigkill_{label}"], rows[f"crossing_to_sigkill_{label}"]
        assert floor["n"] == 3
        assert 0 < ours["n"] <= 3  # a kill that a pass decided before the crossing's record was read is not timed
        assert 0 < rows[f"floor_to_seen_{label}"]["p50"] < floor["p50"]
        assert 0 < rows[f"crossing_to_decision_{label}"]["p50"] < ours["p50"]
        assert rows[f"sigkill_to_floor_{label}"]["unit"] == "ratio"
        assert rows[f"sigkill_to_floor_{label}"]["p50"] == ours["p50"] / floor["p50"]


def test_memory_and_cpu_are_of_the_process_asked_for() -> None:
    rss, pss = bench_footprint.memory(os.getpid())
    ballast = b"\1" * (32 << 20)
    assert bench_footprint.memory(os.getpid())[0] - rss >= len(ballast) // 2
    assert 0 < pss <= rss
    before = bench_footprint.cpu_ns(os.getpid())
    sum(range(1_000_000))
    assert bench_footprint.cpu_ns(os.getpid()) > before


def test_a_tree_of_processes_has_its_grandchildren() -> None:
    shell = subprocess.Popen(
        ["/bin/sh", "-c", "/bin/sh -c 'echo up; read line; exit'; exit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with shell:
        assert shell.stdout.readline() == b"up\n"
        found = bench_footprint.processes(shell.pid)
        assert found[0] == shell.pid
        assert len(found) == 2


def test_a_growth_without_a_decision_is_missed_and_a_decision_without_growth_is_strange() -> None:
    crossings = bench_pods.Crossings(made=[(100, 200), (300, 400), (500, 600)], decided=[350, 150, 250, 351])
    assert crossings.row() == {"name": "crossings", "made": 3, "seen": 2, "missed": 1, "strange": 1}
    assert bench_pods.differs(crossings.row())
    assert not bench_pods.differs(bench_pods.Crossings(made=[(100, 200)], decided=[100]).row())


def test_growth_is_the_last_quarter_above_the_first_after_the_warm_up() -> None:
    samples = [(float(second), 10_000_000 if second < 20 else 1000 + 100 * (second - 20)) for second in range(60)]
    row = bench_pods.growth("hot_rss_growth", samples, 20.0)
    assert row["n"] == 40
    assert row["p50"] == 3000  # medians of ten samples, thirty seconds apart
    assert not bench_pods.differs(row)
    leak = [(at, value * 1000) for at, value in samples]
    assert bench_pods.differs(bench_pods.growth("hot_rss_growth", leak, 20.0))


@pytest.mark.parametrize(
    ("row", "finding"),
    [
        ({"name": "records_step", "kernel": 5, "reader": 5}, False),
        ({"name": "records_step", "kernel": 6, "reader": 5}, True),
        ({"name": "lost", "events": 0}, False),
        ({"name": "lost", "events": 1}, True),
        ({"name": "pods", "manifests": 4, "gauge": 4, "series": 4, "stale": 0, "absent": 0}, False),
        ({"name": "pods", "manifests": 4, "gauge": 5, "series": 4, "stale": 0, "absent": 0}, True),
        ({"name": "pods", "manifests": 4, "gauge": 4, "series": 4, "stale": 1, "absent": 1}, True),
    ],
)
def test_what_differs_is_a_finding(row: dict[str, Any], finding: bool) -> None:
    assert bench_pods.differs(row) is finding


@pytest.mark.kernel
@pytest.mark.once
def test_bench_giveback_sees_page_tables_come_back_late_and_dentries_stay(tmp_path: Path) -> None:
    code, rows = run_bench(
        *(tmp_path, "giveback", "--runs", "1", "--races", "1", "--mib", "32"),
        *("--kind", "anon", "--kind", "tables", "--kind", "dentries"),
    )
    assert code == 0
    for name in ("page tables: nobody else died", "growth meanwhile: in time"):
        assert rows[name]["runs"] == 1  # who wins is asked at a slower pace: tests/daemon/test_hot_patience.py
    for state in ("quiet", "busy"):
        for kind in ("anon", "tables"):
            assert rows[f"{kind}, {state}: exit to memory back"]["unit"] == "us"
        asked = rows.get(f"dentries, {state}: kept when asked for", {"p50": 0})  # less than 1 MiB is not reported
        assert asked["p50"] < rows[f"dentries, {state}: kept"]["p50"]


@pytest.mark.kernel
@pytest.mark.once
def test_bench_kills_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    code, rows = run_bench(tmp_path, "kills", "--runs", "4", "--seed", "1")
    for what in ("hot", "side"):
        assert rows[what]["problems"] == []
        assert (rows[what]["unit"], rows[what]["runs"], rows[what]["right"]) == ("runs", 2, 2)
        assert rows[what]["evicted"] + rows[what]["oom"] == 2
    assert code == 0

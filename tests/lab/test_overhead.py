"""`outrace bench overhead` on the live kernel: what it prints, and that it leaves nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.lab.bench import summary

ROOT = Path(__file__).resolve().parents[2]


def test_a_row_is_median_99th_percentile_and_maximum() -> None:
    values = [1.0 + i / 100 for i in range(100)]
    row = summary("armed", values[::-1], "ratio")
    assert row == {"name": "armed", "unit": "ratio", "n": 100, "p50": 1.495, "p99": 1.98, "max": 1.99}


@pytest.mark.kernel
@pytest.mark.once
def test_bench_overhead_measures_both_states_and_leaves_nothing() -> None:
    bench = subprocess.Popen(
        [sys.executable, "-m", "monitor.cli.main", "bench", "overhead", "--triples", "3", "-o", "json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = bench.communicate(timeout=300)
    assert bench.returncode == 0, err
    answer = json.loads(out)
    assert answer["bench"] == "overhead"
    assert [(row["name"], row["unit"], row["n"]) for row in answer["results"]] == [
        ("armed", "ratio", 3),
        ("disarmed", "ratio", 3),
    ]
    for row in answer["results"]:
        assert 0 < row["p50"] <= row["p99"] <= row["max"]
    assert not (cgroupfs.detect().root / f"outrace-bench-overhead-{bench.pid}").exists()

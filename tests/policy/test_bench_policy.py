"""`outrace bench policy` in small: what it measures and prints. How fast anything was is not asserted."""

import json

import pytest

from monitor.cli.main import main
from monitor.lab.bench_policy import SIGNALS


def test_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "policy", "--max-pods", "50", "--passes", "3", "-o", "json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["bench"] == "policy"
    rows = {row["name"]: row for row in answer["results"]}
    passes = {f"pass_{kind}_{pods}" for kind in SIGNALS for pods in (10, 50)}
    assert rows.keys() == passes
    for row in rows.values():
        assert row["unit"] == "us"
        assert 0 < row["p50"] <= row["p99"] <= row["max"]
        assert row["n"] == 3
    assert len(err.splitlines()) == len(rows)

"""`bench race` and `bench kills` with pods that are held, for seconds."""

from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.lab.bench_race import hold_row
from monitor.lab.race import HoldResult
from tests.cli.test_bench_smoke import run_bench
from tests.commands import called
from tests.live import one_line


@pytest.mark.kernel
@pytest.mark.once
def test_bench_race_holds_and_lets_go_on(tmp_path: Path) -> None:
    code, rows = run_bench(
        *(tmp_path, "race", "--mode", "hold", "--runs", "1", "--load", "4k,tmpfs"),
        *("--hogs", "2", "--margin", "100Mi"),
    )
    assert set(rows) == {"4k hogs=2 margin=100.0Mi", "tmpfs hogs=2 margin=100.0Mi"}
    for found in rows.values():
        assert (found["held"], found["right"], found["oom"], found["killed"], found["changed"]) == (1, 1, 0, 0, [])
        assert found["brakes"] == {"limit+freeze" if cgroupfs.detect().version == 1 else "limit+high+freeze": 1}
        assert found["ended"] == {"clear": 1}
        assert 0 <= found["grew_p50_bytes"] <= found["grew_max_bytes"] < 100 << 20
        assert 0 < found["least_left_bytes"] < 100 << 20
    assert code == 0


@pytest.mark.kernel
@pytest.mark.once
def test_bench_kills_in_holds_leaves_nobody_held(tmp_path: Path) -> None:
    code, rows = run_bench(tmp_path, "kills", "--mode", "hold", "--runs", "4", "--seed", "1")
    for what in ("hot", "side"):
        assert (rows[what]["runs"], rows[what]["right"], rows[what]["oom"]) == (2, 2, 0)
        assert rows[what]["problems"] == []
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("demo", "--margin", "2Mx"), "2Mx"),
        (("demo", "--margin", "-1Mi"), "must be more than 0"),
        (("demo", "--margin", "400Mi"), "more than half the node"),
        (("demo", "--node-memory", "64Mi"), "at least 128Mi"),
        (("demo", "--mode", "hold"), "`outrace demo --mode` is gone: use `outrace bench race --mode hold`"),
        (("bench", "race", "--hooks", "poll"), "`outrace bench race --hooks` is gone: use `outrace demo --hooks NAME"),
        (("bench", "race", "--mode", "hold", "--load", "4k,x"), "'x' is not one of '4k', 'thp'"),
        (("bench", "race", "--mode", "hold", "--hogs", "0"), "'--hogs': 0 is not in the range 1<=x<=16"),
        (("bench", "race", "--mode", "hold", "--margin", "32Mi,400Mi"), "--margin 400.0Mi is more than leaves room"),
        (("bench", "kills", "--mode", "hold", "--trigger", "kernel"), "kills at the crossing, where mode hold brakes"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: tuple[str, ...], says: str) -> None:
    one_line(called(*arguments), 2, says)


def test_a_row_counts_runs_and_takes_figures_only_from_those_that_have_them() -> None:
    held = HoldResult(True, "limit", 100.0, 5, 50, "clear", right=True)
    more = HoldResult(True, "limit", 300.0, 7, 30, "clear", right=True, failed_calls=3)
    lost = HoldResult(oom_kills=2, killed=2, changed=["memory.max is '1' and was 'max'"])
    found = hold_row("x", [held, more, lost])
    assert (found["runs"], found["held"], found["right"], found["oom"], found["failed"]) == (3, 2, 2, 2, 1)
    assert (found["grew_p50_bytes"], found["grew_max_bytes"], found["least_left_bytes"]) == (6, 7, 30)
    assert (found["brake_p50"], found["brake_max"]) == (200.0, 300.0)
    assert found["changed"] == ["memory.max is '1' and was 'max'"]
    assert hold_row("y", [lost])["grew_p50_bytes"] is None
    late = HoldResult(True, right=True, killed=2, evictions=["shop/hog evicted: the node was low"])
    found = hold_row("z", [held, late])
    assert (found["held"], found["right"], found["killed"]) == (2, 1, 1), "data that was right before the kill"

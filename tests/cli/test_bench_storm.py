"""`outrace bench storm` on the live kernel, for seconds instead of minutes: what it prints, and that nobody loses."""

import json
from pathlib import Path

import pytest

from monitor.cli.main import main
from monitor.errors import EXIT_CANNOT, CannotError, MonitorError
from monitor.lab import bench, bench_storm
from tests.cli.test_bench_smoke import run_bench


@pytest.mark.kernel
@pytest.mark.once
def test_bench_storm_loses_no_race_to_a_zombie(tmp_path: Path) -> None:
    few = ("--only", "zombie", "--races", "4", "--turns", "2", "--starts", "1", "--pods", "2")
    code, rows = run_bench(tmp_path, "storm", *few)
    assert code == 0
    for when in ("quiet", "storm"):
        row = rows[f"crossing_to_sigkill_{when}_zombie"]
        assert (row["unit"], row["lost"], row["n"] + row["by_pass"]) == ("us", 0, 4)
    assert rows["crossing_to_sigkill_storm_zombie"]["events_per_s"] > 1000
    assert (rows["storm_to_quiet_zombie"]["unit"], rows["start_to_ready_zombie"]["n"]) == ("ratio", 1)


def test_a_kind_that_fails_costs_no_other_its_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(kind: str, *_: object) -> list[bench.Row]:
        if kind == "reclaim":
            raise MonitorError("process 77 ended with -9")
        return [{"name": kind}]

    monkeypatch.setattr(bench, "require_root", lambda *_: None)
    monkeypatch.setattr(bench_storm, "measure", measure)
    assert main(["bench", "storm", "--only", "forks", "--only", "reclaim", "--only", "spin", "-o", "json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "bench": "storm",
        "results": [{"name": "forks"}, {"name": "spin"}],
        "failed": ["reclaim"],
    }
    assert "reclaim: not measured: process 77 ended with -9" in err


def test_what_this_machine_cannot_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: object) -> list[bench.Row]:
        raise CannotError("this kernel has no BPF", "use another")

    monkeypatch.setattr(bench, "require_root", lambda *_: None)
    monkeypatch.setattr(bench_storm, "measure", measure)
    assert main(["bench", "storm"]) == EXIT_CANNOT
    assert "this kernel has no BPF; use another" in capsys.readouterr().err

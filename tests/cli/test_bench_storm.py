"""`outrace bench storm` on the live kernel, for seconds instead of minutes: what it prints, and that nobody loses."""

from pathlib import Path

import pytest

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

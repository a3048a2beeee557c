"""`outrace bench peers` where it may not run, and its rows. It runs in a guest: make peers."""

import pytest

from monitor.errors import CannotError
from monitor.lab.bench_peers import Seen, check, row


def test_a_machine_that_is_wanted_is_not_filled() -> None:
    with pytest.raises(CannotError) as error:
        check(["outrace", "earlyoom"])
    assert str(error.value) == "bench peers takes all memory of the machine; run it in a guest: make peers"


def test_a_row_has_medians_of_those_that_were_relieved() -> None:
    seen = [Seen(2.0, 0, 0, 0.5, 100), Seen(None, 1, 1, 0.1, 0), Seen(4.0, 0, 0, 0.9, 50)]
    assert row("leak", "earlyoom", seen) == {
        "name": "leak", "peer": "earlyoom", "unit": "s", "runs": 3, "relieved": 2, "relief_s": 3.0, "oom_kills": 1,
        "innocents": 1, "speed": 0.5, "left_bytes": 50,
    }  # fmt: skip
    assert "relief_s" not in row("leak", "none", seen[1:2])

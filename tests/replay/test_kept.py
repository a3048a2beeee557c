"""Recordings that are kept: the same decisions and incidents, byte for byte, on every machine and every Python.

Each is of a real daemon on a lab node of 128 MiB, under --enforce with a hard threshold of 32Mi and a soft one of 48Mi:
a pod of the BestEffort class grows by 100 MiB/s and is evicted, then another one hits its own limit. After a change of
what `outrace replay -o json` prints: outrace replay FILE.rec -o json >FILE.json, and look at the difference.
"""

import json
from pathlib import Path

import pytest

from tests import live

pytestmark = [pytest.mark.live, pytest.mark.oldest]
RECORDINGS = sorted((Path(__file__).resolve().parents[1] / "data/replay").glob("*.rec"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_it_comes_out_as_it_always_did(path: Path) -> None:
    done = live.outrace("replay", str(path), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == path.with_suffix(".json").read_text()
    output = json.loads(done.stdout)
    assert output["decisions"][0]["name"] == "lab/hog"
    assert [one["verdict"] for one in output["incidents"]] == ["eviction_won", "own_limit"]
    assert (output["differences"], output["gaps"], output["damage"]) == ([], [], None)


def test_both_hierarchies_are_kept() -> None:
    assert {path.stem.rpartition("-")[2] for path in RECORDINGS} == {"v1", "v2"}

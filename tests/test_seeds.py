"""docs/seeds.md: every row has its code and its test, or plainly has none."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/seeds.md"
HEADER = ["rule", "where", "test", "what differs, and why"]
PLAINLY = ("not built", "not ours")
#: Flags and signals that the documents name.
NAMED = (
    *("--eviction-hard", "--eviction-soft", "--eviction-soft-grace-period", "--eviction-max-pod-grace-period"),
    *("--eviction-minimum-reclaim", "eviction-pressure-transition-period", "--kernel-memcg-notification"),
    *("--kube-reserved", "--system-reserved", "--image-gc-high-threshold", "--image-gc-low-threshold"),
    *("--low-diskspace-threshold-mb", "--outofdisk-transition-frequency", "--maximum-dead-containers"),
    *("--maximum-dead-containers-per-container", "--minimum-container-ttl-duration", "housekeeping-interval"),
    *("--node-status-update-frequency", "--root-dir", "--terminated-pod-gc-threshold", "memory.available"),
    *("nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree", "pid.available"),
)


def rows(text: str) -> list[list[str]]:
    """The cells of every row of every table, without headers."""
    found = []
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            cells = [cell.strip().strip("|").strip() for cell in cells]
            if cells != HEADER and set(line) - set("|-"):
                found.append(cells)
    return found


def complaints(cells: list[str]) -> list[str]:
    """What is wrong with a row."""
    if len(cells) != 4 or not all(cells):
        return [f"{len(cells)} cells"]
    _, where, test, differs = cells
    if where in PLAINLY:
        return [] if test == "-" and differs != "-" else [f"{where}, but no reason, or a test"]
    found = []
    for place in where.split("`, `"):
        path, colon, name = place.strip("`").partition(": ")
        source = ROOT / path
        last = re.escape(name.rpartition(".")[2])
        pattern = rf"\b{last}\(" if path.endswith(".c") else rf"^\s*(?:def|class) {last}\b|^{last}\b[^=\n]*="
        if not colon or not source.is_file() or not re.search(pattern, source.read_text(), re.M):
            found.append(place)
    for place in test.split("`, `"):
        path, colon, name = place.strip("`").partition("::")
        source = ROOT / path
        if not colon or not source.is_file() or not re.search(rf"^def {name}\(", source.read_text(), re.M):
            found.append(place)
    return found


ROWS = rows(DOCUMENT.read_text())


@pytest.mark.parametrize("cells", ROWS, ids=[cells[0][:60] for cells in ROWS])
def test_every_row_has_its_code_and_its_test(cells: list[str]) -> None:
    assert complaints(cells) == []


def test_every_document_every_flag_and_every_signal_is_there() -> None:
    text = DOCUMENT.read_text()
    assert len(re.findall(r"^## [1-5]\. ", text, re.M)) == 5
    assert len(ROWS) == len({(*cells,) for cells in ROWS}) >= 90
    assert [name for name in NAMED if name not in text] == []


@pytest.mark.parametrize(
    "line",
    [
        "| a rule | `nowhere.py: reserve` | `tests/test_seeds.py::test_every_row_has_its_code_and_its_test` | - |",
        "| a rule | `monitor/policy/sizing.py: none` | `tests/policy/test_node.py::test_reservations_add_up` | - |",
        "| a rule | `monitor/policy/reservation.py: reserve` | `tests/policy/test_node.py::test_none` | - |",
        "| a rule | `monitor/policy/reservation.py: reserve` | - | - |",
        "| a rule | not built | - | - |",
        "| a rule | not built | `tests/policy/test_node.py::test_reservations_add_up` | why |",
        "| a rule | not built | - |",
    ],
)
def test_the_check_can_fail(line: str) -> None:
    (cells,) = rows(line)
    assert complaints(cells)

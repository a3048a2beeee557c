"""`outrace conformance` as a user runs it."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.commands import called
from tests.live import one_line

GOOD: dict[str, Any] = {
    "id": "q-1",
    "op": "oomScoreAdj",
    "input": {"pod": {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}, "memoryCapacity": 1000},
    "expected": {"oomScoreAdj": {"c": 1000}, "qosClass": "BestEffort"},
}
BAD = {**GOOD, "id": "q-2", "expected": {**GOOD["expected"], "qosClass": "Burstable"}}


def test_a_difference_is_shown_and_exits_4(tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text(json.dumps([GOOD, BAD]))
    done = called("conformance", "-o", "json", str(tmp_path / "cases.json"))
    assert done.returncode == 4
    assert json.loads(done.stdout) == {
        "ops": {"oomScoreAdj": {"passed": 1, "total": 2, "failed": ["q-2"]}},
        "passed": 1,
        "total": 2,
    }
    assert "q-2 (oomScoreAdj): qosClass: 'BestEffort', recorded 'Burstable'" in done.stderr
    done = called("conformance", "--show", "0", str(tmp_path / "cases.json"))
    assert (done.returncode, "q-2" in done.stderr) == (4, False)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["OP", "PASSED", "TOTAL", "FAILED"],
        ["oomScoreAdj", "1", "2", "1"],
        ["all", "1", "2", "1"],
    ]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        (".", None, "not a regular file but a directory"),
        ("a.json", b"", "is empty"),
        ("a.json", b"[{]", "Expecting property name"),
        ("a.json", b"[5]", "case 1: not a map with id, op, input and expected"),
        ("a.json", b'{"op": "rank", "input": {}, "expected": {}}', "case 1: no 'id'"),
        ("a.json", b'{"id": "x", "op": "rank"}', "case 1 (x): no 'input'"),
        ("a.json", b'{"id": "x", "op": "rnak", "input": {}, "expected": {}}', "'rnak' is not known"),
        ("a.json", b'{"id": "x", "op": "rank", "input": [], "expected": {}}', "'input' is not a map"),
        ("a.json", b'{"id": "x", "op": "rank", "input": {}}', "no 'expected'"),
        ("a.json", b'{"id": "x", "op": "rank", "input": {}, "expectedOneOf": []}', "no 'expected'"),
        ("a.json", b"\xff\xfe", "'utf-8' codec can't decode byte 0xff in position 0"),
        ("a.gz", b"[]", "Not a gzipped file"),
        ("a.gz", gzip.compress(b"[]", mtime=0)[:-6], "Compressed file ended before"),
        ("a.gz", gzip.compress(b"[]" * 100, mtime=0)[:12] + b"\xff" * 20, "Compressed file ended before"),
    ],
)
def test_what_is_not_in_the_format(tmp_path: Path, name: str, content: bytes | None, complaint: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    one_line(called("conformance", str(tmp_path / name)), 2, complaint)


def test_what_has_no_end_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(80 << 20)))
    for name, complaint in (("fifo", "not a regular file"), ("zero", "not a regular file"), ("bomb.gz", "than 64 MiB")):
        one_line(called("conformance", str(tmp_path / name)), 2, complaint)

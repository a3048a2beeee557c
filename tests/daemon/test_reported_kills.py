"""Of every OOM kill once: without BPF, while nobody runs, and with BPF again."""

import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monitor.hot.ring_records import RingRecords
from monitor.kernel.cgroupfs import Hierarchy
from monitor.link import reported_kills

KILLED = "the kernel's OOM killer killed a process"
HARD = ("--eviction-hard", "memory.available<32Mi")


def span(state_dir: Path, since_ns: int, *until_ns: int) -> None:
    with closing(reported_kills.ReportedKills(state_dir)) as one:
        for each in until_ns:
            one.note(since_ns, each)


def test_spans_are_taken_once(tmp_path: Path) -> None:
    assert reported_kills.spans(tmp_path) == []
    span(tmp_path, 5, 7, 2**63)
    span(tmp_path, 2**63 + 1)  # no kill: nothing is written
    span(tmp_path, 2**63 + 5, 2**63 + 6)
    spans = reported_kills.spans(tmp_path)
    assert spans == [(5, 2**63), (2**63 + 5, 2**63 + 6)]
    assert [reported_kills.holds(spans, ts) for ts in (4, 5, 2**63, 2**63 + 1, 2**63 + 6)] == [
        False,
        True,
        True,
        False,
        True,
    ]
    assert reported_kills.spans(tmp_path) == spans, "until what it protects from was read"
    reported_kills.forget(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_was_lost_in_between_is_in_no_span(tmp_path: Path) -> None:
    with closing(reported_kills.ReportedKills(tmp_path)) as one:
        for since, until in ((5, 7), (5, 9), (20, 21), (20, 30)):
            one.note(since, until)
    assert reported_kills.spans(tmp_path) == [(5, 9), (20, 30)]


def test_another_boot_and_a_broken_file_report_nothing(tmp_path: Path) -> None:
    path = tmp_path / reported_kills.FILE_NAME
    path.write_bytes(b"00000000-0000-0000-0000-000000000000 1 2\n\xff\xfe\nx y\n" + b"z" * 30)
    span(tmp_path, 3, 4)
    assert reported_kills.spans(tmp_path) == [(3, 4)]
    path.unlink()
    path.mkdir()
    assert reported_kills.spans(tmp_path) == []
    reported_kills.forget(tmp_path)


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    for n in range(600):
        span(tmp_path, n, n)
    assert (tmp_path / reported_kills.FILE_NAME).stat().st_size <= 20480
    assert reported_kills.spans(tmp_path)[-1] == (599, 599)


def test_what_was_reported_is_passed_over_step_by_step(tmp_path: Path) -> None:
    """An end is, where what led to it was; and a pid is used again."""
    span(tmp_path, 100, 200)
    records = RingRecords(*cast("tuple[Any, ...]", [None] * 6), state_dir=tmp_path)

    def was_reported(kind: str, ts_ns: int, pid: int = 42) -> bool:
        event: Any = SimpleNamespace(kind=kind, ts_ns=ts_ns, victim_pid=pid)
        return records._was_reported(event)

    assert not was_reported("mark", 90, 7), "before there was none"
    assert [was_reported(kind, 150) for kind in ("kill", "mark", "reclaim", "exit")] == [True] * 4
    assert not was_reported("exit", 160, 7), "its mark was reported by the daemon before"
    assert [was_reported(kind, 9000) for kind in ("kill", "mark", "reclaim", "exit")] == [False] * 4


@pytest.mark.parametrize("last", [False, True])
def test_what_the_log_lost_is_in_no_span_and_what_came_after_is(monkeypatch: pytest.MonkeyPatch, last: bool) -> None:
    from monitor.hot import polled_kills

    sent: list[Any] = []
    gauge: Any = SimpleNamespace(hierarchy=Hierarchy(1, Path("/")))
    other: Any = SimpleNamespace(index=lambda _: None)
    soft = polled_kills.PolledKills(gauge, other, other, other, sent.append)
    now = time.monotonic_ns()
    lines = [b"6,1,%d,-;line\n" % (us,) for us in (1_000_000, 1_500_000, 2_000_000)]
    monkeypatch.setattr(polled_kills, "kmsg_records", lambda *_: (lines, 3 if last else 1))
    soft._fd, soft._since_ns = 0, 5
    soft._read()
    assert [record.msg for record in sent] == ["lines of the kernel's log were lost"]
    # The last line is of now, the first one after the gap half a second before it.
    expected = now if last else now - 500_000_000
    assert expected <= soft._since_ns <= expected + 400_000_000

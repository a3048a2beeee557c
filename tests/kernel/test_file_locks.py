"""Who waits for a file lock that another process has."""

from pathlib import Path

from monitor.kernel.file_locks import Wait, waits_for

# As Linux 6.18 prints them; the waiter of a lock follows it, further ones are indented deeper.
LOCKS = """\
1: FLOCK  ADVISORY  WRITE 100 fe:00:42 0 EOF
1: -> FLOCK  ADVISORY  WRITE 200 fe:00:42 0 EOF
1:  -> FLOCK  ADVISORY  WRITE 201 fe:00:42 0 EOF
2: POSIX  ADVISORY  READ  300 fe:00:43 0 7
2: -> POSIX  ADVISORY  WRITE 100 fe:00:43 0 7
3: OFDLCK ADVISORY  WRITE -1 fe:00:44 0 EOF
3: -> OFDLCK ADVISORY  WRITE 202 fe:00:44 0 EOF
4: LEASE  ACTIVE    READ  100 fe:00:45 0 EOF
"""


def test_those_who_wait_for_a_lock_of_the_held(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    locks.write_text(LOCKS)
    assert waits_for({100}, locks) == [Wait(200, 100, "fe:00:42"), Wait(201, 100, "fe:00:42")]
    assert waits_for({300}, locks) == [Wait(100, 300, "fe:00:43")]
    assert waits_for({100, 300, 200}, locks) == [Wait(201, 100, "fe:00:42")]
    assert waits_for(set(), locks) == []


def test_lines_that_are_no_locks_are_passed_over(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    locks.write_text("\n1:\n1: ->\n5: FLOCK ADVISORY WRITE <none>:0 0 EOF\n" + LOCKS)
    assert len(waits_for({100}, locks)) == 2

"""What is left of a machine of `make test-vagrant` that came to a bad end. Vagrant itself is a stand-in here."""

import argparse
from pathlib import Path
from typing import Any

import commands
import pytest

import vagrant


class Machine(vagrant.Session):
    """One whose `vagrant destroy` ends with ``code``."""

    code = 0

    def __init__(self, home: Path, *_: Any) -> None:
        self.home, self.console = home, home / "console.log"
        self.console.write_text("up\nKernel panic\n")

    def vagrant(self, *arguments: str, into: Path | None = None, deadline: float | None = None) -> int:
        assert arguments[0] == "destroy"
        return self.code


@pytest.mark.parametrize(
    ("code", "error", "raised", "shown"),
    [
        (0, "", "", False),
        (0, "`vagrant ssh` did not end within the deadline", "did not end", True),
        (1, "", "`vagrant destroy` failed", False),
        (1, "up failed", "up failed", True),  # what went wrong first
    ],
)
def test_the_console_is_kept_and_the_session_is_gone(
    code: int, error: str, raised: str, shown: bool, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(vagrant, "Session", Machine)
    monkeypatch.setattr(Machine, "code", code)
    box: Any = None
    found, homes = "", list[Path]()
    try:
        with vagrant.session(box, argparse.Namespace(), "", tmp_path) as machine:
            homes.append(machine.home)
            if error:
                raise commands.VmError(error)
    except commands.VmError as problem:
        found = str(problem)
    assert raised in found
    assert bool(raised) == bool(found)
    assert not homes[0].exists()
    assert (tmp_path / "console.log").read_text() == "up\nKernel panic\n"
    assert ("  console | Kernel panic" in capsys.readouterr().err) == shown

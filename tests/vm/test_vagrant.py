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


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vagrant, "Session", Machine)


def use(results: Path, error: Exception | None = None) -> Path:
    """Where the session was."""
    box: Any = None
    with vagrant.session(box, argparse.Namespace(), "", results) as machine:
        home = machine.home
        if error:
            raise error
    return home


def test_the_console_is_kept_and_the_session_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not use(tmp_path).exists()
    assert (tmp_path / "console.log").read_text() == "up\nKernel panic\n"
    assert "console |" not in capsys.readouterr().err


def test_the_end_of_the_console_is_shown_of_one_that_hung(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(commands.VmError, match="did not end"):
        use(tmp_path, commands.VmError("`vagrant ssh` did not end within the deadline"))
    assert "  console | Kernel panic" in capsys.readouterr().err
    assert "Kernel panic" in (tmp_path / "console.log").read_text()


def test_one_that_cannot_be_destroyed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "code", 1)
    with pytest.raises(commands.VmError, match="`vagrant destroy` failed"):
        use(tmp_path)
    with pytest.raises(commands.VmError, match="up failed"):  # what went wrong first
        use(tmp_path, commands.VmError("up failed"))

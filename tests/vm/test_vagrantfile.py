"""vagrant/Vagrantfile, as far as it can be read without a machine: its syntax."""

import shutil
from pathlib import Path

import pytest

from tests.commands import run

HERE = Path(__file__).resolve().parents[2] / "vagrant"


@pytest.mark.skipif(shutil.which("ruby") is None, reason="no ruby: apt-get install ruby")
@pytest.mark.parametrize("name", ["Vagrantfile", "offline/Vagrantfile"])
def test_ruby_parses_it(name: str) -> None:
    done = run("ruby", "-c", HERE / name)
    assert (done.returncode, done.stdout) == (0, "Syntax OK\n"), done.stderr

"""What the tests' own conftest promises: a module whose tests leave programs pinned has failed."""

import sys
from pathlib import Path

import pytest

from monitor.kernel import instances
from tests import live
from tests.commands import run

pytestmark = [pytest.mark.kernel, pytest.mark.once]

#: An instance is a directory of bpffs; whether something is pinned in it makes no difference.
LEAK = """
from monitor.kernel import instances, mounts

def test_first():
    pass

def test_leaks(tmp_path):
    mounts.ensure()
    instances.claim(instances.instance_directory(tmp_path / "state"), tmp_path)

def test_last():
    pass
"""


def test_a_module_that_leaves_programs_pinned_has_failed(tmp_path: Path) -> None:
    """In a session of pytest with this project's conftest and another module after it."""
    for number, text in enumerate((LEAK, "def test_of_another_module(): pass")):
        (tmp_path / f"test_m{number}.py").write_text(text)
    options = ("-q", "-p", "tests.conftest", "-c", "/dev/null", f"--rootdir={tmp_path}", "-p", "no:cacheprovider")
    done = run(sys.executable, "-m", "pytest", *options, tmp_path, env=live.environment(), cwd=tmp_path)
    lines = [line for line in done.stdout.splitlines() if "are left pinned in" in line]
    try:
        assert lines, done.stdout
        assert "ERROR at teardown of test_last" in done.stdout
        assert done.returncode == 1
    finally:
        for line in lines[:1]:
            instances.remove(Path(line.split(" are left pinned in ")[1].split(" ")[0]))

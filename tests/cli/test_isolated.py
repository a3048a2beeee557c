"""Root imports what is installed: nothing of $HOME, $PYTHONPATH or the working directory, in no process of outrace."""

import os
import sys
from pathlib import Path

import pytest

from monitor.kernel import python
from tests.commands import run

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ROOT / ".venv/bin/outrace"
pytestmark = pytest.mark.skipif(not COMMAND.exists(), reason="scripts/setup.sh did not install the command here")


@pytest.fixture
def bait(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose files leave a trace where a Python reads them; `sudo -E` keeps all of it."""
    trap = f"open({str(tmp_path / 'ran')!r}, 'a').write('!')\n"
    packages = tmp_path / f"home/.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True)
    (packages / "trap.pth").write_text(f"import os; {trap}")
    (tmp_path / "path").mkdir()
    for name in ("sitecustomize.py", "click.py", "json.py", "monitor.py"):
        (tmp_path / "path" / name).write_text(trap)
    (tmp_path / "startup.py").write_text(trap)
    own = {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path / "path")}
    return {"PATH": os.defpath, "PYTHONSTARTUP": str(tmp_path / "startup.py"), **own}


def test_the_command_imports_nothing_of_a_user(tmp_path: Path, bait: dict[str, str]) -> None:
    done = run(COMMAND, "--version", env=bait, cwd=tmp_path / "path", check=True)
    assert done.stdout.startswith("outrace ")
    assert not (tmp_path / "ran").exists()


def test_the_bait_works(tmp_path: Path, bait: dict[str, str]) -> None:
    run(sys.executable, "-c", "", env=bait, cwd=tmp_path / "path")
    # In a virtual environment without the system's there is no .pth.
    assert (tmp_path / "ran").read_text() in ("!!", "!")


def test_children_are_as_isolated_as_their_parent(tmp_path: Path, bait: dict[str, str]) -> None:
    """All are started by `python.command`: hot, side, loader, clean-up."""
    interpreter = COMMAND.read_text().partition("\n")[0].removeprefix("#!").split()
    start = "subprocess.run(python.command('monitor.cli.main', '--version'))"
    code = f"import subprocess; from monitor.kernel import python; {start}"
    done = run(*interpreter, "-c", code, env=bait, cwd=tmp_path / "path", check=True)
    assert done.stdout.startswith("outrace ")
    assert not (tmp_path / "ran").exists()


def test_every_python_is_started_by_it() -> None:
    """`-m` with sys.executable stands nowhere else in the product."""
    users = [
        path.relative_to(ROOT)
        for path in (ROOT / "monitor").rglob("*.py")
        if "sys.executable" in path.read_text() and '"-m"' in path.read_text()
    ]
    assert users == [Path("monitor/kernel/python.py")]
    assert python.command("x")[1] == ("-I" if sys.flags.isolated else "-P")


def test_the_package_and_the_image_isolate_it_too() -> None:
    assert (ROOT / "deploy/deb/outrace").read_text().startswith("#!/usr/lib/outrace/bin/python3 -I\n")
    assert "sed -i '1s|$| -I|' /opt/outrace/bin/outrace" in (ROOT / "deploy/image/Dockerfile").read_text()

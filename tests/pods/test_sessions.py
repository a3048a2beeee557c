"""What a user's desktop ends with stays: the session manager that the machine has, and nothing of the same name."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from tests.pods.programs import programs as programs
from tests.pods.programs import running
from tests.pods.unit_tree import MANAGER, USER, looked
from tests.pods.unit_tree import tree as tree

pytestmark = [pytest.mark.live, pytest.mark.newest]
UNIT = f"{MANAGER}/app.slice/app-gnome\\x2dsession\\x2dmanager.slice/gnome-session-manager@ubuntu.service"
NAME = "user-1000/gnome-session-manager@ubuntu.service"


def test_gnomes_session_manager_stays(tree: tuple[Hierarchy, Path], programs: Path) -> None:
    """As Ubuntu 24.04 has it: in app.slice, where the applications are."""
    shutil.copy("/bin/dash", programs / "gnome-session-binary")
    path = cgroupfs.make(tree[1] / UNIT)
    with running(programs / "gnome-session-binary", path, USER):
        assert looked(tree)[NAME].taken_critical == "gnome-session-binary: the desktop session ends with it"
        with running(Path("/bin/dash"), path, USER):  # what it starts, until that has a scope
            assert looked(tree)[NAME].taken_critical
        assert looked(tree, {"user-1000/gnome-session*": {"never": False}})[NAME].taken_critical == ""


@pytest.mark.parametrize("lack", ["all but the name", "program", "place", "sticky", "owner", "first"])
def test_who_only_passes_for_the_session_manager_goes(tree: tuple[Hierarchy, Path], programs: Path, lack: str) -> None:
    path = cgroupfs.make(tree[1] / UNIT)
    program = programs / ("sh" if lack in ("all but the name", "program") else "gnome-session-binary")
    if lack in ("place", "sticky"):  # where everybody writes
        program = programs / "open/gnome-session-binary"
        program.parent.mkdir()
        program.parent.chmod(0o777 if lack == "place" else 0o1777)
    shutil.copy("/bin/dash", program)
    if lack in ("owner", "sticky"):
        os.chown(program, USER, USER)
    with ExitStack() as stack:
        if lack == "first":
            stack.enter_context(running(Path("/bin/dash"), path, USER))
        stack.enter_context(running(program, path, USER, "" if lack == "all but the name" else "gnome-session-b"))
        if lack == "sticky":
            program.unlink()  # a file that is gone is root's no more than its place
        assert looked(tree)[NAME].taken_critical == ""

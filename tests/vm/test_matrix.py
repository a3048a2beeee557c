"""`make test-vm` without a guest: which guests it boots, what they run, and what is made of their results."""

import argparse
import subprocess
import sys
import threading
import time
from pathlib import Path

import commands
import guest
import images
import matrix
import pytest
import suites

from tests.commands import ROOT
from tests.commands import run as run_command

JUNIT = """<?xml version="1.0"?><testsuites>
<testsuite name="pytest" tests="{tests}" failures="{failures}" errors="{errors}" skipped="{skipped}"/></testsuites>"""


def options(*arguments: str) -> argparse.Namespace:
    return matrix.parser().parse_args(arguments)


def test_a_guest_runs_the_kernel_tests_and_a_small_one_those_that_take_all_memory() -> None:
    kernel, small = suites.suites(options())
    assert " -m '(kernel or live) and not races and not once and" in suites.guest_command(options(), kernel)
    for family in images.FAMILIES:
        command = suites.guest_command(options(), kernel.on(family))
        left_out = {one for one in suites.ONE_GUEST if f" and not {one} " in command}
        assert left_out == {one for one, kernel_of in suites.ONE_GUEST.items() if kernel_of != family.kernel}
    everything, *others = suites.suites(options("--alike"))
    assert (everything.on(images.FAMILIES[0]), small.on(images.FAMILIES[0]), others) == (everything, small, [small])
    # What cannot be taken back is the last thing a guest does.
    last = "tests/lab/test_panic_on_oom.py tests/lab/test_swap.py tests/lab/test_lockdown.py\n"
    assert last in suites.guest_command(options(), small)
    named = set(kernel.selection.split())
    assert "tests/kernel/test_oom.py" in named
    assert not {"tests/policy/test_ranking.py", "tests/race/test_laws.py"} & named
    (asked,) = suites.suites(options("--", "-k", "oom"))
    assert "--require-kernel -k oom\n" in suites.guest_command(options("--", "-k", "oom"), asked)
    (shell,) = suites.suites(options("--command", "true"))
    assert suites.guest_command(options("--command", "true"), shell) == "true\n"


def boots(monkeypatch: pytest.MonkeyPatch, junit: str | None) -> None:
    """Every guest ends well, and leaves this report of its tests."""

    def boot(_image: object, _command: str, _how: object, place: Path, _show: object) -> guest.Outcome:
        place.mkdir(parents=True)
        if junit is not None:
            (place / "junit.xml").write_text(junit)
        return guest.Outcome(0, "", 1.0)

    monkeypatch.setattr(matrix, "boot", boot)


@pytest.mark.parametrize("broken", [("sid",), ("bookworm", "trixie", "sid")])
def test_a_kernel_without_an_image_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[str, ...]
) -> None:
    def get(self: images.Builder, _rebuild: bool) -> images.Image:
        if self.family.suite in broken:
            raise commands.VmError("sid has Linux 7.3 now\nand more")
        return images.Image(self.family, tmp_path, tmp_path, f"{self.family.kernel}.1")

    monkeypatch.setattr(images.Builder, "get", get)
    boots(monkeypatch, JUNIT.format(tests=2, failures=0, errors=0, skipped=0))
    for module in (commands, guest):  # where none can be built, all ends
        monkeypatch.setattr(module, "_ended", threading.Event())
    families = images.choose([])
    if len(broken) == len(families):
        with pytest.raises(commands.VmError, match=r"Linux 7\.3"):
            matrix.guests(options(), families, tmp_path, time.monotonic() + 1000)
        return
    rows = matrix.guests(options(), families, tmp_path, time.monotonic() + 1000)
    output = [(row.name, row.result) for row in rows]
    ran = 2 * len(suites.SUITES)
    assert output[:ran] == [(kernel + suite.suffix, "ok") for kernel in ("6.1", "6.12") for suite in suites.SUITES]
    assert output[ran:] == [("7.2" + suite.suffix, "sid has Linux 7.3 now") for suite in suites.SUITES]
    only = options("--build-only")
    assert [row.kernel for row in matrix.guests(only, families, tmp_path, 0.0)] == ["7.2"] * len(suites.SUITES)


@pytest.mark.parametrize(
    "junit", [None, "", "<testsuites><testsuite te", JUNIT.format(tests=8, failures=0, errors=0, skipped=8)]
)
def test_a_guest_in_which_no_test_passed_is_not_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, junit: str | None
) -> None:
    boots(monkeypatch, junit)
    image = images.Image(images.choose(["7.2"])[0], tmp_path, tmp_path, "7.2.1")
    ends = time.monotonic() + 1000
    row = matrix.one(image, suites.SUITES[0], options(), tmp_path, ends)
    assert (row.good, row.result) == (False, "no test passed")
    shell = options("--command", "true")
    assert matrix.one(image, suites.suites(shell)[0], shell, tmp_path / "shell", ends).good


def test_the_guests_exit_code_is_pytests(tmp_path: Path) -> None:
    """The guest's own script: what failed is not run again."""
    impostor = tmp_path / "python3"
    impostor.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/runs\nexit 1\n')
    impostor.chmod(0o755)
    command = ["bash", "-c", suites.guest_command(options())]
    done = subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False, capture_output=True)
    assert done.returncode == 1
    assert len((tmp_path / "runs").read_text().splitlines()) == 1


def test_a_wrong_guest_is_one_line_and_exit_code_3() -> None:
    done = run_command(sys.executable, ROOT / "scripts/vm/matrix.py", "--kernel", "4.4")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("outrace: error: test-vm: no guest '4.4': there are ")
    assert done.stderr.count("\n") == 1

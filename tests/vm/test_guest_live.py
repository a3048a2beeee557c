"""What becomes of a real QEMU that hangs, fails, or is interrupted; and of a whole guest where an image is there."""

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import guest
import images
import matrix
import pytest

TIMEOUT_S = 60.0


def absent(config: pytest.Config, what: str) -> None:
    if config.getoption("--require-guests"):
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


@pytest.fixture(autouse=True)
def qemu(pytestconfig: pytest.Config) -> None:
    if shutil.which("qemu-system-x86_64") is None:
        absent(pytestconfig, "no qemu-system-x86_64: make test-vm installs it (apt-get install qemu-system-x86)")


# Machines with no disk and no kernel, in the threads of the matrix: their firmware finds nothing to boot, for ever.
MATRIX = """
import sys, types
sys.path.insert(0, sys.argv[1])
import guest, images, matrix
def boot(image, command, options, results, show):
    guest.watch([*guest.machine("tcg", 32, 1), "-qmp", "unix:" + sys.argv[2]], 600, show)
    return guest.Outcome(None, "ended", 1.0)
matrix.boot = boot
matrix.Builder.get = lambda self, rebuild: images.Image(self.family, None, None, "1.2.3")
options = matrix.parser().parse_args(["--jobs", "2", "--results", sys.argv[3]])
with guest.stopping():
    try:
        matrix.guests(options, images.FAMILIES[:1], options.results, float("inf"))
    except (KeyboardInterrupt, guest.Stopped) as error:
        print(type(error).__name__)
"""


def test_a_guest_that_hangs_is_killed_at_its_deadline() -> None:
    why, seconds = guest.watch(guest.machine("tcg", 32, 1), 1.0, lambda line: None)
    assert why == "hung: no end within its deadline of 1 s"
    assert seconds >= 1.0


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Stopped"), (signal.SIGKILL, "")]
)
def test_no_qemu_stays_behind(tmp_path: Path, number: signal.Signals, expected: str) -> None:
    address = tmp_path / "qmp"
    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(TIMEOUT_S)
    listener.bind(str(address))
    listener.listen()
    arguments = [sys.executable, "-c", MATRIX, images.HERE, address, tmp_path]
    runner = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        running = []
        for _ in range(2):
            connection = listener.accept()[0]  # QEMU calls when it is up; the socket has its pid
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            running.append((connection, os.pidfd_open(struct.unpack("3i", credentials)[0])))
        runner.send_signal(number)
        for connection, qemu in running:
            assert select.select([qemu], [], [], TIMEOUT_S)[0], "QEMU is still there"
            os.close(qemu)
            connection.close()
        assert runner.wait(TIMEOUT_S) == (-signal.SIGKILL if number == signal.SIGKILL else 0)
        assert runner.stdout.read().strip().endswith(expected)
    finally:
        listener.close()
        runner.kill()
        runner.wait()
        runner.stdout.close()


@pytest.fixture
def built(pytestconfig: pytest.Config) -> images.Image:
    family = images.FAMILIES[0]
    image = images.Builder(family, matrix.CACHE).cached()
    if image is None:
        absent(pytestconfig, f"no guest image of Linux {family.kernel}: make test-vm builds it")
    return image


def test_a_guest_runs_the_command_and_hands_back_files_and_exit_code(tmp_path: Path, built: images.Image) -> None:
    lines: list[str] = []
    command = "uname -r >/out/release\nls monitor/_bpf/wire.h\nexit 7\n"
    outcome = guest.boot(built, command, guest.Options(memory_mib=512), tmp_path, lines.append)
    assert (outcome.code, outcome.why) == (7, "")
    assert (tmp_path / "release").read_text().strip() == built.release
    assert "monitor/_bpf/wire.h" in lines
    assert "guest: up after" in (tmp_path / "console.log").read_text()
    assert not list(built.disk.parent.glob("run-*"))


def test_a_guest_that_dies_has_no_exit_code_and_its_console_is_kept(tmp_path: Path, built: images.Image) -> None:
    command = "echo before the end\necho c >/proc/sysrq-trigger\n"
    outcome = guest.boot(built, command, guest.Options(memory_mib=512), tmp_path, lambda line: None)
    assert outcome.code is None
    assert outcome.why == "died: it stopped before it handed back a result"
    assert any("Kernel panic - not syncing: sysrq triggered crash" in line for line in outcome.console)

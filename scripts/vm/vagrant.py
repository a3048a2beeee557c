"""`make test-vagrant`: a real `vagrant up`, the project's tests inside, `vagrant destroy`; offline, unprivileged.

Vagrant and libvirt run as this user, as root as `nobody`, with a home of their own in a temporary directory: a libvirt
*session*, which needs no system daemon, no bridge and no change to this machine's configuration.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from box import Box, BoxBuilder
from commands import VmError, run, say
from guest import EXPENDABLE, TAIL_LINES, expected, project_files, usable_acceleration
from images import ROOT, TOOLS, choose, install_tools
from matrix import CACHE, exit_code
from report import counts
from suites import SUITES, pytest_command

VAGRANT_TOOLS = {
    **TOOLS,
    "vagrant": "vagrant",
    "libvirtd": "libvirt-daemon",
    "virsh": "libvirt-clients",
    "qemu-img": "qemu-utils",
    "rsync": "rsync",
    "ssh": "openssh-client",
}
#: Files of packages that bring no command.
VAGRANT_FILES = {
    "/usr/share/vagrant-plugins/plugins.d/vagrant-libvirt.json": "vagrant-libvirt",
    "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so": "libvirt-daemon-driver-qemu",
}
#: Variables of the caller's that the tests in the machine read.
HANDED_IN = ("OUTRACE_RACES",)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="make test-vagrant ARGS=...", description=__doc__)
    made.add_argument("--kernel", default="6.1", metavar="K", help="6.1, 6.12, 7.2 or a suite (default 6.1: Debian 12)")
    made.add_argument("--memory", type=int, default=1024, metavar="MIB", help="memory of the machine (default 1024)")
    made.add_argument("--cpus", type=int, default=2, help="CPUs of the machine (default 2)")
    made.add_argument(
        "--deadline", type=float, default=2400, metavar="S", help="for `vagrant up` and the tests together (2400)"
    )
    made.add_argument("--command", metavar="SH", help="run this in /vagrant as root instead of pytest")
    made.add_argument("--rebuild", action="store_true", help="build the box anew, with today's packages")
    made.add_argument(
        "pytest", nargs="*", help="what follows `--` goes to pytest, instead of the tests of make test-vm's first guest"
    )
    return made


class Session:
    """Vagrant with a libvirt session of its own below ``home``; ``words`` are for the machine's kernel."""

    def __init__(self, home: Path, box: Box, options: argparse.Namespace, words: str) -> None:
        self.home = home
        self.deadline = time.monotonic() + options.deadline
        self.project = home / "p"
        self.console = home / "console.log"
        # Short names: libvirt puts sockets deep below, and a socket's path has at most 107 bytes.
        folders = {"XDG_RUNTIME_DIR": "r", "XDG_CONFIG_HOME": "c", "XDG_CACHE_HOME": "k", "XDG_DATA_HOME": "d"}
        for folder in (*folders.values(), "c/libvirt", "v", "m"):
            (home / folder).mkdir(mode=0o700)
        # QEMU's output into a file, so that no virtlogd is started.
        (home / "c/libvirt/qemu.conf").write_text('stdio_handler = "file"\nsecurity_driver = "none"\n')
        for name in project_files():
            target = self.project / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
        for version in ("9.0+a", "9.0+b"):  # tests/deploy/test_deb_live.py installs one, and upgrades it to the other
            command = [ROOT / ".venv/bin/python", ROOT / "scripts/deb.py", "--out", self.project / "packages"]
            run(*command, "--package-version", version)
        shutil.copy(ROOT / "vagrant/offline/Vagrantfile", home / "m/Vagrantfile")
        for source, boot_file in ((box.vmlinuz, "vmlinuz"), (box.initrd, "initrd")):
            shutil.copyfile(source, home / boot_file)
        driver = "kvm" if usable_acceleration(box.vmlinuz) == "kvm" and os.geteuid() != 0 else "qemu"
        self.environment = {
            "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(home),
            **{name: str(home / folder) for name, folder in folders.items()},
            "VAGRANT_HOME": str(home / "v"),
            "VAGRANT_CHECKPOINT_DISABLE": "1",
            "VAGRANT_DEFAULT_PROVIDER": "libvirt",
            "OUTRACE_PROJECT": str(self.project),
            "OUTRACE_SSH_PORT": str(free_port()),
            "OUTRACE_DEVICE": some_device(),
            "OUTRACE_DRIVER": driver,
            "OUTRACE_MEMORY": str(options.memory),
            "OUTRACE_CPUS": str(options.cpus),
            "OUTRACE_VMLINUZ": str(home / "vmlinuz"),
            "OUTRACE_INITRD": str(home / "initrd"),
            "OUTRACE_WORDS": words,
            "OUTRACE_CONSOLE": str(self.console),
        }
        self.as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
        if self.as_nobody:
            for path in (home, *home.rglob("*")):
                if not path.is_symlink():
                    shutil.chown(path, "nobody", "nogroup")

    def vagrant(self, *arguments: str, into: Path | None = None, deadline: float | None = None) -> int:
        """Run vagrant, its output going to the terminal or a file; its exit code. VmError past the deadline."""
        left = (deadline or self.deadline) - time.monotonic()
        out = open(into, "wb") if into else None  # noqa: SIM115  # closed below
        process = subprocess.Popen(
            [*self.as_nobody, "vagrant", *arguments], env=self.environment, cwd=self.home / "m",
            stdin=subprocess.DEVNULL, stdout=out, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(max(left, 0.1))
        except subprocess.TimeoutExpired as error:
            raise VmError(f"`vagrant {arguments[0]}` did not end within the deadline (--deadline)") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)  # vagrant's ssh and rsync as well
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if out:
                out.close()

    def keep_console(self, place: Path) -> list[str]:
        """Copy what the machine's console said so far; its last lines."""
        if not self.console.exists():
            return []
        shutil.copyfile(self.console, place / "console.log")
        return self.console.read_text(errors="replace").splitlines()[-TAIL_LINES:]

    def close(self) -> int:
        """Destroy the machine and end libvirt and whatever QEMU it left; the exit code of `vagrant destroy`."""
        try:
            return self.vagrant("destroy", "--force", deadline=time.monotonic() + 60)
        finally:
            for file in [*self.home.glob("r/libvirt/qemu/run/*.pid"), *self.home.glob("r/libvirt/libvirtd.pid")]:
                end(int(file.read_text()), self.home)


def end(pid: int, home: Path) -> None:
    """Kill the process if it is one of this session's: one that has ``home`` in its environment."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if str(home).encode() in Path(f"/proc/{pid}/environ").read_bytes():
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except (ProcessLookupError, FileNotFoundError):
        pass  # it ended by itself
    finally:
        os.close(handle)


def handed_in() -> list[str]:
    """What the caller's environment says to the tests, as words for `env`."""
    return [f"{name}={os.environ[name]}" for name in HANDED_IN if name in os.environ]


def some_device() -> str:
    """A network device of this machine that vagrant-libvirt accepts the name of; it is named and never used."""
    refused = ("lo", "docker", "macvtap", "virbr", "vnet")
    found = [name for name in sorted(os.listdir("/sys/class/net")) if not name.startswith(refused)]
    if not found:
        raise VmError("vagrant-libvirt wants a network device besides `lo`: ip link add outrace0 type dummy")
    return found[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def session(box: Box, options: argparse.Namespace, words: str, results: Path) -> Iterator[Session]:
    """A `Session` that is gone afterwards, machine and daemon included. The machine's console is kept in ``results``,
    and its end is shown where it came to a bad one.
    """
    home = Path(tempfile.mkdtemp(prefix="ov-", dir="/var/tmp"))
    try:
        made = Session(home, box, options, words)
        try:
            yield made
        except VmError:
            print("\n".join(f"  console | {line}" for line in made.keep_console(results)), file=sys.stderr)
            raise
        finally:
            try:
                made.keep_console(results)
            finally:
                code = made.close()
        if code:
            raise VmError("`vagrant destroy` failed (see above)")
    finally:
        shutil.rmtree(home)


def test(options: argparse.Namespace) -> int:
    families = choose([options.kernel])
    if len(families) != 1:
        raise VmError("--kernel takes one kernel here")
    install_tools(VAGRANT_TOOLS, VAGRANT_FILES)
    box = BoxBuilder(families[0], CACHE).box(options.rebuild)
    results = CACHE / "results" / f"vagrant-{families[0].kernel}"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    words = f"{expected(families[0])} {EXPENDABLE if options.command else ''}"
    with session(box, options, words, results) as machine:
        began = time.monotonic()

        def took(what: str) -> None:
            say(f"vagrant: {what}: {time.monotonic() - began:.0f} s since the start")

        if machine.vagrant("box", "add", "--name", "outrace-offline", str(box.file)):
            raise VmError("`vagrant box add` failed (see above)")
        took("box added")
        if machine.vagrant("up", "--provider=libvirt"):
            raise VmError("`vagrant up` failed (see above)")
        took("up")
        left, suite = machine.deadline - time.monotonic(), SUITES[0].on(families[0])
        command = options.command or pytest_command(options, "/tmp/junit.xml", suite, left)
        inside = f"cd /vagrant && {command}"
        code = machine.vagrant("ssh", "-c", f"sudo env {shlex.join([*handed_in(), 'bash', '-c', inside])}")
        took(f"the command ended with exit code {code}")
        if not options.command:
            machine.vagrant("ssh", "-c", "sudo cat /tmp/junit.xml", into=results / "junit.xml")
    took("destroyed")
    if not options.command:
        passed, failed, skipped = counts(results)
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
        if passed + failed == 0:
            code = code or 1
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    return exit_code("test-vagrant", partial(test, options))


if __name__ == "__main__":
    sys.exit(main())

"""One guest: boot it under QEMU with the project inside, wait within a deadline, take the results out.

The project goes in as a raw tar on one NVMe namespace and the results come back as a raw tar on another, so nothing is
shared with or mounted on the host, and booting needs no privilege and no network.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from images import DISK_ID, MIB, ROOT, Family, Image

#: Room for what a guest hands back. The file is sparse.
RESULTS_SIZE = 128 * MIB
#: A kernel that can run on this machine's hardware acceleration says so within a second or two; TCG itself needs 3-7 s.
PROBE_S = 20.0
#: On the kernel's command line: this machine may be lost, so the tests that take all of its memory may run.
EXPENDABLE = "outrace.expendable=1"
#: BPF rungs that load on each kernel as Debian configures it, best first. They are on its command line: the tests fail
#: where one of them does not load. (Not in images.py: what is in there is part of an image, which is then built anew.)
RUNGS = {
    "5.10": ("kprobe",),
    "6.1": ("kprobe",),
    "6.12": ("kprobe",),
    "7.2": ("memcg-tracepoint", "kprobe"),
}
#: A guest that prints this on its console is given so many MiB more, as a machine is that memory is plugged into.
PLUG = "guest: plug "
#: As many times, and as much altogether.
PLUGS, PLUGGED_MIB = 4, 1024
#: How much of the console of a guest that died or hung is shown.
TAIL_LINES = 60


@dataclass(frozen=True)
class Options:
    """How a guest is made."""

    memory_mib: int = 1024
    cpus: int = 2
    cgroup: str = "v2"
    append: str = ""
    deadline_s: float = 1200.0
    accel: str = "auto"


@dataclass
class Outcome:
    """What came of a guest. ``code`` is the command's exit code, or None when there is none (``why`` says why)."""

    code: int | None
    why: str
    seconds: float
    console: list[str] = field(default_factory=list)


class Stopped(BaseException):
    """SIGTERM or SIGHUP: unwinds like Ctrl-C does, so that no QEMU process stays behind."""


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP raise `Stopped`."""

    def stop(number: int, frame: object) -> None:
        raise Stopped(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- in and out --------------------------------------------------------------------------------------------------------


def project_files(root: Path = ROOT) -> list[Path]:
    """The project's files relative to ``root``: what git does not ignore; without git, all but hidden and built."""
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "-c", "safe.directory=*", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
        names = [Path(name) for name in listed.split("\0") if name]
        return sorted(name for name in names if (root / name).is_symlink() or (root / name).exists())
    found = []
    for directory, folders, files in os.walk(root):
        folders[:] = [
            name for name in folders if not name.startswith(".") and name not in ("__pycache__", "build", "dist")
        ]
        links = [name for name in folders if (Path(directory) / name).is_symlink()]
        found += [(Path(directory) / name).relative_to(root) for name in (*files, *links)]
    return sorted(found)


def pack(target: Path, command: str, root: Path = ROOT) -> None:
    """Write the tar that a guest unpacks at /: the project below project/, and the command it runs there."""
    with tarfile.open(target, "w") as tar:
        for name in project_files(root):
            tar.add(root / name, arcname=f"project/{name}", recursive=False)
        data = command.encode()
        entry = tarfile.TarInfo("command")
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    with open(target, "r+b") as file:  # a namespace has whole blocks
        file.truncate(-(-target.stat().st_size // MIB) * MIB)


def unpack(raw: Path, results: Path) -> int | None:
    """Take a guest's results out of its raw tar; its exit code, or None when it wrote none."""
    (results / "exit-code").unlink(missing_ok=True)  # an earlier run's
    try:
        with tarfile.open(raw) as tar:
            for member in tar:
                # Only plain files and only below `results`: what comes out of a guest is not to be trusted.
                name = Path(member.name)
                if member.isfile() and not name.is_absolute() and ".." not in name.parts:
                    content = tar.extractfile(member)
                    assert content is not None
                    (results / name).parent.mkdir(parents=True, exist_ok=True)
                    (results / name).write_bytes(content.read())
    except tarfile.ReadError:
        return None  # it never came so far
    try:
        return int((results / "exit-code").read_text())
    except (FileNotFoundError, ValueError):
        return None


# -- QEMU --------------------------------------------------------------------------------------------------------------


def acceleration(name: str) -> list[str]:
    if name == "kvm":
        return ["-accel", "kvm", "-cpu", "host"]
    # All emulated CPUs in one thread. With a thread each, a CPU may run stale code while another one patches the
    # kernel's (static keys, tracepoints, kprobes), which ends in "Oops: int3": 1 boot of 8 of Linux 7.2.
    # They take turns of up to 100 ms (QEMU's TCG_KICK_PERIOD). Without erms fresh pages are made twice as fast, and
    # races with huge pages 8 MiB from the limit were lost before the hot thread had its turn (13 of 20 on 6.12).
    return ["-accel", "tcg,thread=single", "-cpu", "max"]


def machine(accel: str, memory_mib: int, cpus: int, control: Path | None = None) -> list[str]:
    """QEMU with nothing but a serial console. It dies with us, even when we are killed with SIGKILL.

    ``control``: a socket to be made, by which memory can be plugged (`plug`).
    """
    memory = [str(memory_mib)]
    if control is not None:
        memory = [f"{memory_mib},slots={PLUGS},maxmem={memory_mib + PLUGGED_MIB}M"]
        memory += ["-qmp", f"unix:{control},server=on,wait=off"]
    return [
        "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
        "-serial", "stdio", "-no-reboot", "-net", "none", "-machine", "q35", *acceleration(accel),
        "-smp", str(cpus), "-m", *memory,
    ]  # fmt: skip


def plug(control: Path, mib: int, number: int) -> None:
    """Plug a module of memory into a guest. Raises OSError with QEMU's reason."""
    name = f"plug{number}"
    steps: tuple[tuple[str, dict[str, object]], ...] = (
        ("qmp_capabilities", {}),
        ("object-add", {"qom-type": "memory-backend-ram", "id": name, "size": mib * MIB}),
        ("device_add", {"driver": "pc-dimm", "id": f"dimm{number}", "memdev": name}),
    )
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PROBE_S)
        sock.connect(str(control))
        answers = sock.makefile()
        answers.readline()  # its greeting
        for execute, arguments in steps:
            sock.sendall(json.dumps({"execute": execute, "arguments": arguments}).encode() + b"\n")
            answer = next(found for found in map(json.loads, answers) if "event" not in found)
            if "error" in answer:
                raise OSError(f"{execute}: {answer['error']['desc']}")


@cache
def usable_acceleration(vmlinuz: Path) -> str:
    """ "kvm" when a kernel really boots with it, else "tcg": /dev/kvm may be there and refuse, or hang, every guest."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    lines: list[str] = []
    command = [*machine("kvm", 256, 1), "-kernel", str(vmlinuz), "-append", "console=ttyS0 panic=-1"]
    end, _ = watch(command, PROBE_S, lines.append)
    # It has no root file system: it must come as far as missing that.
    return "kvm" if end is None and any("Unable to mount root fs" in line for line in lines) else "tcg"


#: The QEMUs that run now, each watched by a thread of its own.
_running: set[subprocess.Popen[bytes]] = set()
_ended = threading.Event()


def end_all() -> None:
    """Kill every guest, and every one that is begun from now on: the threads that watch them come to their end."""
    _ended.set()
    for process in list(_running):
        process.kill()


def watch(command: list[str], deadline_s: float, line: Callable[[str], None]) -> tuple[str | None, float]:
    """Run a QEMU to its end, giving ``line`` each line of its console. (why it did not end well or None, seconds)."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    _running.add(process)
    if _ended.is_set():
        process.kill()
    assert process.stdout is not None
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    rest, why = "", None
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(process.stdout, select.POLLIN)
    try:
        while True:
            left = began + deadline_s - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                why = f"hung: no end within its deadline of {deadline_s:g} s"
                break
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                break
            *whole, rest = (rest + decode(data)).split("\n")
            for text in whole:
                line(text.rstrip("\r"))
        if rest:
            line(rest)
        if why is None and process.wait() != 0:
            why = f"QEMU ended with exit code {process.returncode}"
    finally:
        process.kill()
        process.wait()
        _running.discard(process)
        process.stdout.close()
    return why, time.monotonic() - began


def expected(family: Family, append: str = "") -> str:
    """The word for the kernel that says which rungs its tests must find. None with other words (``append``): what they
    take away, as lockdown=confidentiality does, they may take away; to require some, append outrace.rungs=NAME,...
    """
    return f"outrace.rungs={'' if append.strip() else ','.join(RUNGS[family.kernel])}"


def command_line(family: Family, options: Options, *, emulated: bool) -> str:
    """What the kernel is started with."""
    # Dear to emulate, and for hardware that TCG is not; and no test of a timer that a busy host makes late.
    slow = ["mitigations=off", "init_on_alloc=0", "no_timer_check", "tsc=reliable"] if emulated else []
    words = [
        *slow, "console=ttyS0", f"root=PARTUUID={DISK_ID:08x}-01", "rootwait", "rw", "init=/sbin/outrace-init",
        "panic=-1", "quiet", f"outrace.cgroup={options.cgroup}", EXPENDABLE,
        expected(family, options.append), options.append,
    ]  # fmt: skip
    return " ".join(words).strip()


def disks(drives: Sequence[str]) -> Iterator[str]:
    """The options of QEMU for these drives, in order, at one NVMe controller."""
    yield from ("-device", "nvme,id=nvme,serial=outrace")
    for number, drive in enumerate(drives, 1):
        yield from ("-drive", f"{drive},if=none,id=disk{number},format=raw")
        yield from ("-device", f"nvme-ns,drive=disk{number},bus=nvme,nsid={number}")


def boot(image: Image, command: str, options: Options, results: Path, show: Callable[[str], None]) -> Outcome:
    """Boot ``image``, run the bash script ``command`` in the project's directory there, and unpack what it left in /out
    into ``results``, where console.log is written too. ``show`` gets each line of the console as it comes.
    """
    results.mkdir(parents=True, exist_ok=True)
    accel = usable_acceleration(image.vmlinuz) if options.accel == "auto" else options.accel
    show(f"booting Linux {image.release} with {accel}, cgroup {options.cgroup}, {options.memory_mib} MiB")
    console: list[str] = []
    # Not in /tmp, which may be small or in memory: QEMU keeps what the guest writes to its root here as well.
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir=image.disk.parent) as place,
        open(results / "console.log", "w") as log,
    ):
        control = Path(place, "qmp")
        plugged = 0
        project, back = Path(place, "project.tar"), Path(place, "results.tar")
        pack(project, command)
        with open(back, "xb") as file:
            file.truncate(RESULTS_SIZE)
        drives = [f"file={image.disk},snapshot=on", f"file={project},snapshot=on", f"file={back},cache=unsafe"]
        words = command_line(image.family, options, emulated=accel == "tcg")

        def line(text: str) -> None:
            console.append(text)
            log.write(text + "\n")
            log.flush()
            show(text)
            if text.startswith(PLUG):
                nonlocal plugged
                plugged += 1
                try:
                    plug(control, int(text.removeprefix(PLUG).split()[0]), plugged)
                except (OSError, ValueError, StopIteration) as error:
                    show(f"no memory is plugged: {error}")

        run = ["env", f"TMPDIR={place}", *machine(accel, options.memory_mib, options.cpus, control), *disks(drives)]
        run += ["-kernel", str(image.vmlinuz), "-append", words]
        why, seconds = watch(run, options.deadline_s, line)
        code = unpack(back, results)
    if code is None and why is None:
        why = "died: it stopped before it handed back a result"
    return Outcome(code if why is None else None, why or "", seconds, console[-TAIL_LINES:])


def obstacle(family: Family, cgroup: str) -> str:
    """Why this guest cannot be had, or ""."""
    # Debian builds 6.12 and later without CONFIG_MEMCG_V1.
    if cgroup == "v1" and family.kernel != "6.1":
        return f"Debian's Linux {family.kernel} has no memory controller for cgroup v1"
    return ""

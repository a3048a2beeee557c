"""Compile, load, attach and pin the BPF programs, in a process of its own that ends when it is done.

This is the only file that imports bcc: with LLVM in it a process holds 130-150 MB; the daemon, a tenth of that, opens
what is pinned here. Pins live in ``BPFFS/outrace/INSTANCE/STAMP``: the instance stands for the state dir, the stamp for
programs, offsets and kernel. A matching stamp is re-used as it is, so what happened while no daemon ran
is still in its rings; another is loaded beside the old pins, which are removed only when the new ones are complete.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from monitor import __version__
from monitor.errors import CannotError, MonitorError, remedy_of
from monitor.kernel import cgroupfs, charging, libbpf, pins, python
from monitor.kernel.btf import VMLINUX, Btf
from monitor.kernel.charging import AUTO as AUTO
from monitor.kernel.instances import claim, remove
from monitor.kernel.instances import instance_directory as instance_directory
from monitor.kernel.offsets import defines

#: In the place of the kernel's own headers.
KERNEL_HEADER = "kernel.h"
SOURCES = ("wire.h", "memcg.h", "pressure.c", "sweep.c", "stats.c", "charges.c", "oom.c", "procs.c")
#: Compiled for one hook only.
_OF_HOOK = {pins.TRACEPOINT: "stats.c", pins.KPROBE: "charges.c"}
#: What the programs are compiled for: the kubelet's thresholds alone, or those of `*.reclaimable` as well (FORMULAS in
#: the programs; docs/signals.md). A node without the latter pays nothing for them.
KUBELETS, RECLAIMABLE = 0, 1
#: The opposite of loading: every pin of an instance is removed.
unload = remove
#: Turns of a run of `sweep` and of `commit`. The verifier follows every turn of a loop: 8 of a sweep come close to the
#: million instructions that it accepts.
SWEEP_CHUNK = 2
COMMIT_CHUNK = 64
#: Memory cgroups with page cache, dying ones too. Where entries are made on demand (safe in these programs since Linux
#: 6.1, which has memory ready for them) an empty map takes 2 MiB and each entry 64 bytes; before that they are all made
#: ahead, and so are fewer.
MAX_LEAVES, MAX_LEAVES_AHEAD = 131_072, 16_384
BPF_F_NO_PREALLOC = 1
_BCC_REMEDY = "apt-get install python3-bpfcc; the venv is made by /usr/bin/python3 with system site packages"
#: The output of clang and the verifier, in the state dir.
LOG = "loader.log"
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
#: BCC (0.26, 0.31 and 0.37 alike) includes the ten files below before every program, for its integer types, the page
#: size and one option of the configuration. No struct is read through headers (offsets come from BTF), so nothing else
#: in a kernel's can matter: compiled with Debian's, all programs were the same to the byte. They
#: are below include/: the first is included before all others, and has everything; the others are there to be found.
HEADERS = (
    *("linux/kconfig.h", "linux/types.h", "linux/bpf_common.h", "linux/version.h", "linux/log2.h", "asm/page.h"),
    *("uapi/linux/bpf.h", "uapi/linux/if_ether.h", "uapi/linux/if_packet.h", "uapi/linux/ptrace.h"),
)
_LINKS = ("build", "source")
_PARENT = "OUTRACE_LOADER_PARENT"  # pid of the process that waits for the loader


def bpf_directory() -> Path:
    """Where the C is: beside the package in a checkout, inside it when installed."""
    here = Path(__file__).resolve().parent.parent
    found = next((path for path in (here / "_bpf", here.parent / "bpf") if (path / "wire.h").exists()), None)
    if found is None:
        raise MonitorError(f"the BPF sources are missing beside {here}", "reinstall outrace")
    return found


def program_text(hook: str = pins.TRACEPOINT) -> str:
    """One text, because BCC rewrites map accesses in the main file only."""
    directory = bpf_directory()
    others = {*_OF_HOOK.values()} - {_OF_HOOK[hook]}
    return "\n".join((directory / name).read_text() for name in SOURCES if name not in others)


def _numa_nodes() -> int:
    """One more than the highest node number: numbers may have gaps, and the programs skip what is not there."""
    found = [int(p.name[4:]) for p in Path("/sys/devices/system/node").glob("node[0-9]*")]
    return max(found, default=0) + 1


def compile_flags(hook: str = pins.TRACEPOINT, formulas: int = KUBELETS) -> list[str]:
    """``-D`` options for this kernel. Raises CannotError when it lacks what the programs read."""
    values = defines(Btf(), _numa_nodes(), cgroupfs.detect().version)
    values |= {"SWEEP_CHUNK": SWEEP_CHUNK, "COMMIT_CHUNK": COMMIT_CHUNK}
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    on_demand = version is not None and (int(version[1]), int(version[2])) >= (6, 1)
    leaves, flags = (MAX_LEAVES, BPF_F_NO_PREALLOC) if on_demand else (MAX_LEAVES_AHEAD, 0)
    values |= {"MAX_LEAVES": leaves, "LEAVES_FLAGS": flags, "FORMULAS": formulas}
    values["PAGE_SIZE"] = os.sysconf("SC_PAGE_SIZE")
    return [f"-D{name}={value}" for name, value in sorted(values.items())]


@cache
def _of_this_kernel() -> bytes:
    """What decides the programs of every hook: how offsets are taken from which BTF, and the kernel. Hashing BTF (10
    ms) stands for the offsets themselves, which take 0.25 s to look up.
    """
    here = Path(__file__).parent
    h = hashlib.sha256(repr((__version__, _numa_nodes(), cgroupfs.detect().version, *os.uname())).encode())
    # pins.py lists what is pinned, libbpf.py loads some of it.
    ours = (here / name for name in ("loader.py", "offsets.py", "btf.py", "pins.py", "libbpf.py"))
    for path in (*ours, bpf_directory() / KERNEL_HEADER, VMLINUX, Path("/sys/kernel/notes")):
        try:
            h.update(path.read_bytes())  # the kernel's notes hold its build id
        except OSError:
            h.update(b"-")
    return h.digest()


def stamp(hook: str, formulas: int = KUBELETS) -> str:
    """A hash of what decides a hook's programs: the kernel, the sources, what they are compiled for."""
    text = f"{hook}\n{formulas}\n{program_text(hook)}"
    return hashlib.sha256(_of_this_kernel() + text.encode()).hexdigest()[:16]


def ensure_loaded(state_dir: Path, hook: str = AUTO, formulas: int = KUBELETS) -> tuple[Path, bool]:
    """The pin directory for this state dir and kernel, and whether it had to be loaded. Raises CannotError. ``hook``:
    one of `pins.HOOKS`, or ``auto`` for what is pinned, else the best that is offered. ``formulas``: the formulas of
    the thresholds that they compare.
    """
    instance = instance_directory(state_dir)
    wanted = {name: instance / stamp(name, formulas) for name in pins.HOOKS if hook in (AUTO, name)}
    for directory in wanted.values():
        if directory.is_dir():
            for half in instance.glob("new*"):  # of a loader that was killed; a whole one would have replaced the pins
                remove(half)
            return directory, False
    if hook == AUTO:
        offers = charging.offered()
        best = next((offer for offer in offers if offer.ok), offers[0])
        if not best.ok:
            raise CannotError(best.why, best.remedy)
        hook = best.name
    if problem := libbpf.load_problem():
        raise CannotError(f"this process may not load BPF programs: {problem}", libbpf.PRIVILEGES)
    _run_loader(state_dir, wanted[hook], hook, formulas)
    return wanted[hook], True


def pinned(state_dir: Path) -> dict[str, Path]:
    """The hooks whose programs are pinned, as they are now and for this kernel, and where."""
    instance = instance_directory(state_dir)
    try:
        if not instance.is_dir():
            return {}
        marks = ((hook, stamp(hook, formulas)) for hook in pins.HOOKS for formulas in (KUBELETS, RECLAIMABLE))
        return {hook: instance / mark for hook, mark in marks if (instance / mark).is_dir()}
    except (OSError, MonitorError):
        return {}  # this user may not see them; or there are no memory cgroups, which `detect` reports


def _run_loader(state_dir: Path, directory: Path, hook: str, formulas: int) -> None:
    """Load and pin, in a process of its own. Raises CannotError."""
    log = state_dir / LOG
    try:
        with open(log, "w", opener=partial(os.open, mode=0o600)) as errors:
            done = subprocess.run(
                python.command("monitor.kernel.loader", str(state_dir), str(directory), hook, str(formulas)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONPATH": package_path(), _PARENT: str(os.getpid())},
            )
    except OSError as error:
        remedy = remedy_of(error.errno, "free space there, or use another --state-dir")
        raise CannotError(f"the BPF loader cannot be started: {error}", remedy) from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        # clang inside BCC may crash on what it cannot parse; then only the log knows at what.
        tail = "it wrote nothing"
        with suppress(OSError):  # the state dir may be gone by now
            tail = " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:]) or tail
            with open(log, "a") as file:
                file.write(f"\nthe loader ended with status {done.returncode}\n")
        why = "killed, it most likely wanted memory: it needs 150 MB; " if done.returncode == -signal.SIGKILL else ""
        problem = f"the BPF loader ended with status {done.returncode}: {tail}"
        raise CannotError(problem, f"{why}details in {log}") from None
    if "error" in answer:
        raise CannotError(answer["error"], answer["remedy"])


def package_path() -> str:
    """PYTHONPATH under which ``-m monitor...`` finds this package in a child process."""
    here = str(Path(__file__).resolve().parent.parent.parent)
    old = os.environ.get("PYTHONPATH", "")
    return f"{here}{os.pathsep}{old}" if old and here not in old.split(os.pathsep) else old or here


def prepare_headers(tree: Path, text: str) -> str:
    """Make ``tree`` what BCC_KERNEL_SOURCE must be, with ``text`` in its first file; its path. So no package of headers
    is needed on the node. Raises CannotError.
    """
    try:
        for name in HEADERS:
            path = tree / "include" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text if name == HEADERS[0] else "")
        # BCC looks for BCC_KERNEL_SOURCE/build and /source, as it would under /lib/modules/RELEASE.
        for link in _LINKS:
            with suppress(FileExistsError):
                (tree / link).symlink_to(".")
    except OSError as error:
        raise CannotError(
            f"cannot write {tree}: {error.strerror}", "free space there, or use another --state-dir"
        ) from None
    return str(tree)


def _load(state_dir: Path, directory: Path, hook: str, formulas: int) -> None:
    bpf, programs = _compiled(state_dir, hook, formulas)
    parent = directory.parent
    claim(parent, state_dir)
    fresh = parent / f"new{os.getpid()}"
    fresh.mkdir()
    try:
        for name in pins.MAPS:
            pins.pin(bpf[name].map_fd, fresh / f"map_{name}")
        for name, fd in programs.items():
            pins.pin(fd, fresh / f"prog_{name}")
        for name in pins.OOM:
            pins.pin(pins.attach(name, programs[name]), fresh / f"link_{name}")
        os.rename(fresh, directory)
    except BaseException:
        remove(fresh)
        raise
    for other in parent.iterdir():
        if other != directory and other.is_dir():
            remove(other)


def _compiled(state_dir: Path, hook: str, formulas: int) -> tuple[Any, dict[str, int]]:
    """The BPF object, and the descriptors of its programs, loaded."""
    text = (bpf_directory() / KERNEL_HEADER).read_text()
    os.environ["BCC_KERNEL_SOURCE"] = prepare_headers(state_dir / "bcc-headers", text)
    try:
        from bcc import BPF, lib
    except ImportError as error:
        raise CannotError(f"bcc cannot be imported: {error}", _BCC_REMEDY) from None
    if not hasattr(lib, "bpf_attach_raw_tracepoint"):
        problem = "the module `bcc` is not BPF's: PyPI has an unrelated package of that name"
        raise CannotError(problem, f"pip uninstall bcc; {_BCC_REMEDY}")

    flags = [*compile_flags(hook, formulas), "-Wno-macro-redefined"]
    always = [name for name in (*pins.TRACEPOINTS, *pins.RUN) if name not in pins.PRESSURE]
    kind = BPF.KPROBE if hook == pins.KPROBE else BPF.RAW_TRACEPOINT
    try:
        bpf = BPF(text=program_text(hook), cflags=flags)
        programs = {name: bpf.load_func(name, BPF.RAW_TRACEPOINT).fd for name in always}
        programs |= {name: bpf.load_func(name, kind).fd for name in pins.HOOKS[hook]}
        for name in pins.HOOKS[hook]:  # once: near a threshold it is too late to find that it fails
            os.close(pins.attach(name, programs[name]))
    except MonitorError:
        raise
    except Exception as error:  # noqa: BLE001  # bcc raises bare Exception for whatever clang or the verifier refuse
        first = str(error).strip().splitlines()[0]
        raise CannotError(f"the BPF programs do not load: {first}", f"details in {state_dir / LOG}") from None
    return bpf, programs


def _end_with_parent() -> None:
    """SIGTERM when `outrace run` is killed while it waits for this: nothing else would remove the pins."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # past what undoes half a load
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.environ.get(_PARENT, str(os.getppid())) != str(os.getppid()):
        sys.exit(128 + signal.SIGTERM)  # it was killed before this could be asked for


def main(argv: list[str]) -> int:
    """``python -m monitor.kernel.loader STATE_DIR PIN_DIR HOOK FORMULAS``: load and pin; reports in a JSON line."""
    _end_with_parent()
    try:
        _load(Path(argv[0]), Path(argv[1]), argv[2], int(argv[3]))
        print(json.dumps({}))
    except MonitorError as error:
        print(json.dumps({"error": error.message, "remedy": error.remedy}))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Compile, load, attach and pin the BPF programs, in a process of its own that ends when it is done.

This is the only file that imports bcc: with LLVM in it a process holds 130-150 MB. The daemon opens what is pinned
here (monitor/kernel/pins.py) and stays at a tenth of that. Pins live in ``BPFFS/outrace/INSTANCE/STAMP``: the
instance stands for the state dir, the stamp is a hash of the programs, of the offsets they were compiled with and of
the kernel. A matching stamp is re-used as it is, so what happened while no daemon ran is still in its rings; another
stamp is loaded beside the old pins, which are removed only when the new ones are complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from monitor import __version__
from monitor.errors import CannotError, MonitorError
from monitor.kernel import cgroupfs, pins
from monitor.kernel.btf import VMLINUX, Btf
from monitor.kernel.offsets import defines

SOURCES = ("wire.h", "memcg.h", "pressure.c", "oom.c", "procs.c")
#: Turns of a run of `sweep` and of `commit`. The verifier follows every turn of a loop: 8 of a sweep come close to the
#: million instructions that it accepts.
SWEEP_CHUNK = 2
COMMIT_CHUNK = 64
_BCC_REMEDY = "apt-get install python3-bpfcc; the venv is made by /usr/bin/python3 with system site packages"
_TRACEFS = Path("/sys/kernel/tracing/events")
#: What clang and the verifier say, in the state dir.
LOG = "loader.log"
#: Which state dir an instance belongs to: bpffs holds nothing but BPF objects. Gone after a reboot, as the pins are.
_RUN = Path("/run/outrace")


def bpf_directory() -> Path:
    """Where the C is: beside the package in a checkout, inside it when installed."""
    here = Path(__file__).resolve().parent.parent
    for candidate in (here / "_bpf", here.parent / "bpf"):
        if (candidate / "wire.h").exists():
            return candidate
    raise MonitorError(f"the BPF sources are missing beside {here}", "reinstall outrace")


def program_text() -> str:
    """One text, because BCC rewrites map accesses in the main file only."""
    directory = bpf_directory()
    return "\n".join((directory / name).read_text() for name in SOURCES)


def _numa_nodes() -> int:
    """One more than the highest node number: numbers may have gaps, and the programs skip what is not there."""
    found = [int(p.name[4:]) for p in Path("/sys/devices/system/node").glob("node[0-9]*")]
    return max(found, default=0) + 1


def compile_flags() -> list[str]:
    """``-D`` options for this kernel. Raises CannotError when it lacks what the programs read."""
    values = defines(Btf(), _numa_nodes(), cgroupfs.detect().version)
    values |= {"SWEEP_CHUNK": SWEEP_CHUNK, "COMMIT_CHUNK": COMMIT_CHUNK}
    return [f"-D{name}={value}" for name, value in sorted(values.items())]


def instance_directory(state_dir: Path) -> Path:
    """Pins of one state dir; the name may not contain dots (bpffs reserves them)."""
    return pins.ROOT / hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:12]


def state_directory(instance: Path) -> Path | None:
    """The state dir that an instance belongs to, None when it is not known any more."""
    try:
        return Path((_RUN / instance.name).read_text())
    except OSError:
        return None


def stamp() -> str:
    """Hash of what decides the loaded programs: their sources, how offsets are taken from which BTF, the kernel.

    Hashing BTF (10 ms) stands for the offsets themselves, which take 0.25 s to look up.
    """
    here = Path(__file__).parent
    facts = (__version__, _numa_nodes(), cgroupfs.detect().version, *os.uname())
    h = hashlib.sha256(repr(facts).encode())
    h.update(program_text().encode())
    ours = (here / name for name in ("loader.py", "offsets.py", "btf.py", "pins.py"))  # pins.py says what is pinned
    for path in (*ours, VMLINUX, Path("/sys/kernel/notes")):
        try:
            h.update(path.read_bytes())  # the kernel's notes hold its build id
        except OSError:
            h.update(b"-")
    return h.hexdigest()[:16]


def missing_tracepoints() -> list[str]:
    """Tracepoints the programs need and this kernel does not offer."""
    where = {
        "mod_memcg_lruvec_state": "memcg",
        "mod_memcg_state": "memcg",
        "mark_victim": "oom",
        "signal_generate": "signal",
    }
    return [f"{group}:{name}" for name, group in where.items() if not (_TRACEFS / group / name).is_dir()]


def ensure_loaded(state_dir: Path) -> tuple[Path, bool]:
    """The pin directory for this state dir and kernel, loading first if it is missing or stale.

    And whether it was loaded.

    Raises CannotError (exit code 3) when this kernel or machine cannot, with the remedy.
    """
    missing = missing_tracepoints()
    if missing:
        raise CannotError(
            f"this kernel has no tracepoint {missing[0]}",
            "memory cgroup tracepoints came with Linux 6.13; other hooks for older kernels are not in this version",
        )
    instance = instance_directory(state_dir)
    directory = instance / stamp()
    if directory.is_dir():
        _remember(instance, state_dir)  # /run may have been emptied since
        for half in instance.glob("new*"):  # of a loader that was killed; a whole one would have replaced `directory`
            unload(half)
        return directory, False
    _forget_removed()
    forget_unpinned()
    done = subprocess.run(
        # -P: nothing lying in the working directory is imported as root.
        [sys.executable, "-P", "-m", "monitor.kernel.loader", str(state_dir), str(directory)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": package_path()},
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        # clang inside BCC may crash on what it cannot parse; then only the log knows at what.
        tail = " / ".join(done.stderr.strip().splitlines()[-3:]) or f"details in {state_dir / LOG}"
        raise CannotError(
            f"the BPF loader ended with status {done.returncode}: {tail}", "see `outrace doctor`"
        ) from None
    if "error" in answer:
        raise CannotError(answer["error"], answer["remedy"])
    return directory, True


def _remember(instance: Path, state_dir: Path) -> None:
    _RUN.mkdir(exist_ok=True)
    (_RUN / instance.name).write_text(str(state_dir.resolve()))


def _forget_removed() -> None:
    """Forget instances whose state dir was removed: nobody can run there."""
    for entry in _remembered():
        state_dir = state_directory(pins.ROOT / entry.name)
        if state_dir is not None and not state_dir.exists():
            entry.unlink(missing_ok=True)


def forget_unpinned() -> None:
    """Forget instances that have no pins any more (a loader that failed, pins removed by hand)."""
    for entry in _remembered():
        if not (pins.ROOT / entry.name).is_dir():
            entry.unlink(missing_ok=True)


def _remembered() -> list[Path]:
    return list(_RUN.iterdir()) if _RUN.is_dir() else []


def package_path() -> str:
    """PYTHONPATH under which ``-m monitor...`` finds this package in a child process."""
    here = str(Path(__file__).resolve().parent.parent.parent)
    old = os.environ.get("PYTHONPATH", "")
    return f"{here}{os.pathsep}{old}" if old and here not in old.split(os.pathsep) else old or here


def unload(instance: Path) -> int:
    """Remove every pin below ``instance``, which detaches what was attached by them; how many there were."""
    removed = 0
    for directory, _, files in os.walk(instance, topdown=False):
        for name in files:
            os.unlink(os.path.join(directory, name))
            removed += 1
        os.rmdir(directory)
    (_RUN / instance.name).unlink(missing_ok=True)
    return removed


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """clang and the verifier write to descriptor 2; keep it for the error message."""
    saved = os.dup(2)
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    os.dup2(fd, 2)
    os.close(fd)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _load(state_dir: Path, directory: Path) -> None:
    from monitor.kernel import headers

    source = headers.prepare(state_dir / "headers")
    if source:
        os.environ["BCC_KERNEL_SOURCE"] = source
    try:
        from bcc import BPF, lib
    except ImportError as error:
        raise CannotError(f"bcc cannot be imported: {error}", _BCC_REMEDY) from None
    if not hasattr(lib, "bpf_attach_raw_tracepoint"):
        raise CannotError(
            "the module `bcc` is not BPF's: PyPI has an unrelated package of that name",
            f"pip uninstall bcc; {_BCC_REMEDY}",
        )

    # Header trees of 7.x need the Microsoft extensions for anonymous tagged members.
    flags = [*compile_flags(), "-fms-extensions", "-Wno-microsoft-anon-tag", "-Wno-macro-redefined"]
    log = state_dir / LOG
    try:
        with _stderr_to(log):
            bpf = BPF(text=program_text(), cflags=flags)
            functions = {name: bpf.load_func(name, BPF.RAW_TRACEPOINT) for name in (*pins.TRACEPOINTS, *pins.RUN)}
    except Exception as error:  # noqa: BLE001  # bcc raises bare Exception for whatever clang or the verifier refuse
        first = str(error).strip().splitlines()[0]
        raise CannotError(f"the BPF programs do not load: {first}", f"details in {log}") from None

    parent = directory.parent
    parent.mkdir(parents=True, exist_ok=True)
    _remember(parent, state_dir)  # before there is a pin that `outrace unload` could take for nobody's
    fresh = parent / f"new{os.getpid()}"
    fresh.mkdir()
    links = []
    try:
        for name in pins.MAPS:
            pins.pin(bpf[name].map_fd, fresh / f"map_{name}")
        for name, function in functions.items():
            pins.pin(function.fd, fresh / f"prog_{name}")
        for name in pins.OOM:
            link = lib.bpf_attach_raw_tracepoint(functions[name].fd, pins.TRACEPOINTS[name].encode())
            if link < 0:
                raise CannotError(f"cannot attach to the tracepoint {pins.TRACEPOINTS[name]}", "see `outrace doctor`")
            links.append(link)
            pins.pin(link, fresh / f"link_{name}")
        os.rename(fresh, directory)
    except BaseException:
        unload(fresh)
        with suppress(OSError):
            parent.rmdir()  # unless older pins are there, which stay
        forget_unpinned()
        raise
    for other in parent.iterdir():
        if other != directory:
            unload(other)


def main(argv: list[str]) -> int:
    """``python -m monitor.kernel.loader STATE_DIR PIN_DIR``: load and pin; one JSON line on stdout says how it went."""
    try:
        _load(Path(argv[0]), Path(argv[1]))
        print(json.dumps({"pinned": argv[1]}))
    except MonitorError as error:
        print(json.dumps({"error": error.message, "remedy": error.remedy}))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

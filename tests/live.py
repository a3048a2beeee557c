"""What the tests of the live kernel share: pinned programs loaded once, the daemon on them, waiting."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs, instances, loader
from monitor.kernel.charging import NAMES
from monitor.kernel.domains import DomainTable, Reading
from monitor.kernel.pins import TRACEPOINT, Counters, Map, Pins, Program, Ring, pin
from monitor.kernel.sweeping import Sweeper
from monitor.kernel.wire import EVENT, PAGE, OomEvent
from monitor.lab import janitor
from monitor.lab.child import Child
from monitor.lab.daemon import LabDaemon, Record
from monitor.lab.node import LabNode, LabPod
from tests.commands import ROOT as ROOT
from tests.commands import run
from tests.own_cgroups import removed_with_session
from tests.puppet import TIMEOUT_S
from tests.puppet import Puppet as Puppet
from tests.puppet import cgroup as cgroup
from tests.shared_pins import pin_dir as pin_dir
from tests.shared_pins import state_dir as state_dir
from tests.shared_pins import unload_shared as unload_shared
from tests.waiting import alive as alive
from tests.waiting import emulated as emulated
from tests.waiting import ends as ends
from tests.waiting import kernel_thread as kernel_thread
from tests.waiting import until as until

MIB = 1 << 20
#: What the programs' gate holds back: 64 pages on each CPU.
GATE = 64 * PAGE * (os.cpu_count() or 1)
#: scripts/vm/guest.py boots its guests with it.
RUNGS = "outrace.rungs="
CLI = "import sys; from monitor.cli.main import main; sys.exit(main())"
PYTHONPATH = {"PYTHONPATH": str(ROOT)}


def lend_pins(state: Path) -> None:
    """Pin the programs and maps of `state_dir` for another state dir as well, if it has none. Not for two at a time."""
    source = pin_dir()
    target = loader.instance_directory(state) / source.name
    if target.exists():
        return
    with Watching(attach=False):
        pass  # what earlier tests left in the rings is taken out
    state.mkdir(mode=0o750, exist_ok=True)
    removed_with_session(target.parent)
    instances.claim(target.parent, state)
    target.mkdir()
    shared = Pins(source)
    for path in source.iterdir():
        fd = shared.fd(path.name)
        pin(fd, target / path.name)
        os.close(fd)


def rungs_expected(words: str, release: str, required: bool) -> tuple[str, ...]:
    """BPF rungs that must load, best first; () where it is not given. ``words``: the kernel's command line, on which
    scripts/vm/guest.py writes them. Else, where kernel tests are ``required``, what came with Linux 6.13: by its
    release (`uname -r`), because the tracepoint's own absence is what has to be noticed.
    """
    rungs = [word.removeprefix(RUNGS) for word in words.split() if word.startswith(RUNGS)]
    if rungs:
        return tuple(name for name in rungs[-1].split(",") if name)
    major, minor = (int(number) for number in release.split(".")[:2])
    return (TRACEPOINT,) if required and (major, minor) >= (6, 13) else ()


def children(pid: int) -> list[int]:
    """Pids of the child processes of a single-threaded process."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def vmstat() -> dict[str, int]:
    """What the kernel counts of the whole machine, mostly in pages."""
    return {name: int(count) for name, count in map(str.split, Path("/proc/vmstat").read_text().splitlines())}


def environment(**more: str) -> dict[str, str]:
    """The environment in which a child process finds this package."""
    return os.environ | PYTHONPATH | more


def outrace(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """One command of the CLI, to its end; ``asking`` this LabDaemon."""
    command = (*options.pop("wrapper", ()), sys.executable, "-c", CLI, *arguments)
    env = environment()
    if (daemon := options.pop("asking", None)) is not None:
        env["OUTRACE_RUN_DIR"] = str(daemon.state_dir)
    return run(*command, env=env, cwd="/", **options)


def in_own_mounts(script: str, *then: str) -> tuple[str, ...]:
    """A command that runs another one where file systems are mounted by ``script``, seen by no other process."""
    return ("unshare", "--mount", "sh", "-ec", f'{script}\nexec "$@"', "sh", *then)


def one_line(result: subprocess.CompletedProcess[str], code: int, *expected: str) -> None:
    """The command ended with ``code`` and one line on stderr that has all of these words."""
    lines = result.stderr.strip().splitlines()
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("outrace: error: ")
    for text in expected:
        assert text in lines[0]


class Event:
    """A record of the pressure ring, in bytes."""

    def __init__(self, data: bytes) -> None:
        (self.ts_ns, self.cgroup_id, usage, inactive, active, self.generation, self.result,
         self.kind, self.domain, self.threshold, self.tgid, self.cpu, _) = EVENT.unpack(data)  # fmt: skip
        self.usage, self.inactive_file, self.active_file = usage * PAGE, inactive * PAGE, active * PAGE

    @property
    def working_set(self) -> int:
        return max(0, self.usage - self.inactive_file)


class Watching:
    """Context manager: the pinned programs used as the hot process does, with the records in lists."""

    def __init__(
        self,
        attach: bool = True,
        hook: str = loader.AUTO,
        formulas: int = loader.KUBELETS,
        directory: Path | None = None,  # where other programs than the shared ones are pinned
    ) -> None:
        self.pins = Pins(directory or pin_dir(hook, formulas))
        #: Whether the hook sees charges only: not what becomes of page cache afterwards.
        self.partial = self.pins.hook != TRACEPOINT
        self.table = DomainTable(self.pins)
        self.table.reset()
        self.sweeper = Sweeper(self.pins, self.table)
        self.events: list[Event] = []
        self.ooms: list[OomEvent] = []
        self.rings = {
            "events": Ring(self.pins, "events", lambda data: self.events.append(Event(data))),
            "steps": Ring(self.pins, "steps", lambda data: self.events.append(Event(data))),
            "ooms": Ring(self.pins, "ooms", lambda data: self.ooms.append(OomEvent.decode(data))),
            "kills": Ring(self.pins, "kills", lambda data: self.ooms.append(OomEvent.decode(data))),
            "reclaims": Ring(self.pins, "reclaims", lambda data: self.ooms.append(OomEvent.decode(data))),
        }
        for ring in (*self.rings.values(), processes := Ring(self.pins, "procs", lambda _: None)):
            ring.consume()  # what earlier tests left
        processes.close()
        self.events.clear()
        self.ooms.clear()
        self._attach = attach
        self.links: list[int] = []
        self.counters = Counters(self.pins)
        self.before = self.counters.now()

    def __enter__(self) -> Self:
        if self._attach:
            self.links = [self.pins.attach(name) for name in self.pins.pressure]
        return self

    def __exit__(self, *_: object) -> None:
        for link in self.links:
            os.close(link)
        for ring in self.rings.values():
            ring.close()
        self.table.reset()
        self.table.close()
        self.counters.close()
        for part in vars(self.sweeper).values():  # the daemon keeps its programs for life; here there is one per test
            if isinstance(part, (Program, Map)):
                os.close(part.fd)

    def add(self, path: Path, **options: int) -> int:
        return self.table.add(cgroupfs.cgroup_id(path), **options)

    def consume(self) -> None:
        for ring in self.rings.values():
            ring.consume()

    def counted(self) -> dict[str, int]:
        """What the programs counted since the block began."""
        return {name: n - self.before[name] for name, n in self.counters.now().items()}

    def agree(self, *paths: Path) -> list[Reading]:
        """Wait until memory.stat has settled, which the kernel does every 2 s, and has what the table has.

        First without a sweep: the programs alone must have kept the file pages to within what their gate holds back, 64
        pages on each CPU. Then after one: everything, exactly.
        """
        names = [path.name for path in paths]

        def kernels() -> list[Reading]:
            found = [cgroupfs.read_cgroup(cgroupfs.detect(), path) for path in paths]
            return [Reading(r.usage, r.inactive_file, r.active_file) for r in found]

        def ours() -> list[Reading | None]:
            return [self.table.read(cgroupfs.cgroup_id(path)) for path in paths]

        def near() -> bool:
            return all(
                a is not None
                and abs(a.inactive_file - b.inactive_file) <= GATE
                and abs(a.active_file - b.active_file) <= GATE
                for a, b in zip(ours(), kernels(), strict=True)
            )

        def exact() -> bool:
            self.sweeper.run()
            return ours() == kernels()

        if None not in ours() and not self.partial:
            until(near, f"the table without a sweep and memory.stat of {names} to agree")
        until(exact, f"the table and memory.stat of {names} to agree")
        return kernels()

    def oom(self, wanted: Callable[[OomEvent], bool]) -> OomEvent:
        """The first record of the OOM ring that is ``wanted``, waited for."""

        def look() -> OomEvent | None:
            self.consume()
            return next((event for event in self.ooms if wanted(event)), None)

        return until(look, "an OOM record")


def fixture(context: Callable[..., AbstractContextManager[Any]], *arguments: Any) -> Any:
    """A fixture of what this context manager yields, anew for each test."""

    @pytest.fixture
    def made() -> Iterator[Any]:
        with context(*arguments) as found:
            yield found

    return made


@contextmanager
def freezer_root() -> Iterator[Path | None]:
    """Where cgroup v1's freezer is mounted; meanwhile somewhere, if it is not. None where it cannot be."""
    with ExitStack() as stack:
        root = cgroupfs.freezer()
        if root is None:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outrace-test-")))
            if subprocess.run(["mount", "-t", "cgroup", "-o", "freezer", "freezer", root], check=False).returncode:
                root = None
            else:
                stack.callback(subprocess.run, ["umount", root], check=True)
        yield root


@contextmanager
def freezer() -> Iterator[Path]:
    """A cgroup of the v1 freezer: a process killed in it while it is frozen stays until it is thawed, at the latest in
    the end. (Under v2 it would exit at once; but v1's may be mounted beside v2.)
    """
    with freezer_root() as root:
        if root is None:
            pytest.skip("cgroup v1's freezer is not mounted, and cannot be")
        path = root / f"outrace-test-{os.getpid()}"
        path.mkdir()
        try:
            yield path
        finally:
            (path / "freezer.state").write_text("THAWED")
            assert janitor.remove_tree(str(path))


def freeze(freezer: Path, pid: int) -> None:
    """Move a process there, and wait until it stands still."""
    (freezer / "cgroup.procs").write_text(str(pid))
    (freezer / "freezer.state").write_text("FROZEN")
    until(lambda: (freezer / "freezer.state").read_text().strip() == "FROZEN", "a process to freeze")


def daemon(node: LabNode, *options: str, **rest: Any) -> LabDaemon:
    """A daemon for ``node`` that uses the programs pinned already; for a state dir of its own they are pinned a second
    time, and those pins go when it ends. (Compiling them takes 2 s here, and half a minute in an emulated guest.)
    """
    if "state_dir" in rest:
        lend_pins(rest["state_dir"])
        return LabDaemon(node, *options, **rest)
    pin_dir()
    return LabDaemon(node, *options, state_dir=state_dir(), keep_pins=True, **rest)


def message(daemon: LabDaemon, msg: str, since: int = 0, **fields: object) -> Record:
    """The first log record with this message and these fields, waited for."""
    try:
        return daemon.told(msg, TIMEOUT_S, since, **fields)
    except MonitorError:
        pytest.fail(f"the daemon never logged {msg!r} {fields}:\n" + "\n".join(str(r) for r in daemon.log[since:]))


def ended(daemon: LabDaemon) -> None:
    """Stop it and take in its log to the last line, so that what is not there was never logged."""
    assert daemon.stop() == 0
    assert daemon.wait_for(lambda _: False, TIMEOUT_S) is None


def kill_both(daemon: LabDaemon) -> None:
    """SIGKILL to both processes: to the helper first, which would undo what the hot process has changed, and that one
    is stopped before, or it would start another helper.
    """
    sides = children(daemon.pid)
    os.kill(daemon.pid, signal.SIGSTOP)
    for pid in (*sides, daemon.pid):
        os.kill(pid, signal.SIGKILL)
    daemon.process.wait()
    for side in sides:
        ends(side)


def messages(daemon: LabDaemon, msg: str) -> list[Record]:
    """All log records with this message so far."""
    return [record for record in daemon.log if record.get("msg") == msg]


def rung(daemon: LabDaemon) -> str:
    """The rung in use, from the metrics: exactly one."""
    metrics = daemon.metrics()
    (taken,) = [name for name in NAMES if metrics[f'outrace_hook_rung{{rung="{name}"}}']]
    return taken


def metric(daemon: LabDaemon, name: str) -> float:
    return daemon.metrics()[f"outrace_{name}"]


def hog_at(node: LabNode, path: str, **options: str | int) -> Child:
    """A hog in a cgroup below the node's that is no pod's of it."""
    return node.start_hog(cgroupfs.make(node.cgroup / path), **options)


def killed_hog(node: LabNode, pod: LabPod, mib: int, **options: str | int) -> Child:
    """A hog in ``pod`` that was killed while it took its memory."""
    hog = node.start_hog(pod, mib=mib, **options)
    hog.go()
    assert hog.wait() == -signal.SIGKILL
    return hog

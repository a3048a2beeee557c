"""`outrace bench peers`: outrace, earlyoom, nohang and systemd-oomd, one at a time, on a machine that may be lost.

They look at the whole machine, so the machine is filled: only a guest whose kernel command line allows that is taken.
Each runs as Debian ships it; outrace with `--enforce`, about the threshold that it has on a VM, and a rule for stalls.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil

from monitor.errors import CannotError, MonitorError
from monitor.kernel import cgroup_procs, cgroupfs, meminfo
from monitor.lab.bench import Found, Listed, Row, bench, number, progress
from monitor.lab.bench_footprint import cpu_ns, memory, processes
from monitor.lab.bench_stall import RELAXING, SHARE, speed
from monitor.lab.child import until
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode

#: A word of the kernel command line: this machine may run out of memory.
EXPENDABLE = "outrace.expendable=1"
#: Peer -> its command; () is run in another way.
PEERS: dict[str, tuple[str, ...]] = {
    "none": (),
    "earlyoom": ("earlyoom", "-r", "3600"),
    "nohang": ("nohang", "--monitor", "--config", "/etc/nohang/nohang.conf"),
    "systemd-oomd": ("systemctl", "start", "systemd-oomd"),
    "outrace": (),
}
_OOMD = ("systemd-oomd.socket", "systemd-oomd.service")
#: What Fedora gives the slices of users: systemd-oomd kills below a unit with these.
_MANAGED = ("ManagedOOMMemoryPressure=kill", "ManagedOOMMemoryPressureLimit=60%", "ManagedOOMSwap=kill")
#: Of the machine's memory: of the two innocent pods, a store of data and a reader of files. No line is crossed by them,
#: which for outrace counts files in use as used.
_STORE, _FILES = 0.1, 0.35
#: A pod that displaces files leaves so much by the kernel's MemAvailable: no line of any peer is crossed.
_LEFT_MIB, _HIGH_MIB, _SLOW_DISK = 200, 32, 8 * MIB
_SAMPLE_S, _SETTLE_S, _IDLE_S, _MOST_S, _BEFORE = 0.5, 3.0, 20.0, 45.0, 5


class Seen(NamedTuple):
    """One run. ``relief_s``: from the beginning of the growth until the pod that grew is gone and the reader has half
    of its speed again, None: not in time. ``speed``: the reader's until then, as a share of before. ``left``: the least
    bytes of MemAvailable that were seen.
    """

    relief_s: float | None
    oom_kills: int
    innocents: int
    speed: float
    left: int


class Scene:
    """The machine with two innocent pods, and a third that grows."""

    def __init__(self, node: LabNode, files: Path) -> None:
        self.node, self._files = node, files
        self.mib = meminfo.mem_total() // MIB
        self._pods = {name: node.add_pod(name, request=size) for name, size in self._requests().items()}
        self.hog_pod = node.add_pod("hog")
        self._goal = 1 << 62
        self.store = node.fill(self._pods["store"], round(_STORE * self.mib))
        self.store.oom_score_adj = 0  # not the bench's
        work = {"kind": "map", "path": files / "data", "mib": round(_FILES * self.mib)}
        self.reader = node.start(self._pods["reader"], "monitor.lab.workers:files", **work)
        self.reader.oom_score_adj = 0

    def _requests(self) -> dict[str, int]:
        """What each needs: a pod above its request is one of those that a kubelet evicts first."""
        return {name: round((part + 0.05) * self.mib) * MIB for name, part in (("store", _STORE), ("reader", _FILES))}

    def hog(self, **options: str | int) -> None:
        """Start a pod that grows, by default to more than the machine has."""
        wanted: dict[str, Any] = {"mib": 2 * self.mib} | options
        hog = self.node.start_hog(self.hog_pod, **wanted)
        hog.oom_score_adj = 0
        hog.go()

    def displace(self) -> None:
        self.hog(mib=available() // MIB - _LEFT_MIB, rate=100)

    def displace_slowly(self) -> None:
        """The same with a disk that gives 8 MiB/s to all pods together."""
        device = Path(self._files).stat().st_dev
        disk = Path(f"/sys/dev/block/{device >> 8}:{device & 255}").resolve()
        whole = disk if (disk / "queue").exists() else disk.parent
        (self.node.cgroup / "io.max").write_text(f"{(whole / 'dev').read_text().strip()} rbps={_SLOW_DISK}")
        self.displace()

    def throttle(self) -> None:
        (self.hog_pod.cgroup / "memory.high").write_text(str(_HIGH_MIB * MIB))
        self._goal = 2 * _HIGH_MIB * MIB
        self.hog(mib=3 * _HIGH_MIB, rate=100)

    def innocents(self) -> int:
        """How many of the innocent pods have been killed."""
        return sum(child.process.poll() is not None for child in (self.store, self.reader))

    @property
    def hog_waits(self) -> bool:
        """Whether the pod that grows lives, and lacks what it is after."""
        has = cgroupfs.read_cgroup(self.node.hierarchy, self.hog_pod.cgroup).usage
        return has < self._goal and bool(cgroup_procs.processes(self.hog_pod.cgroup))

    def speed(self) -> float:
        return speed(self.reader, _SAMPLE_S)


#: What is done to the machine. After the first five no peer's line on available memory is crossed.
LOADS: dict[str, Callable[[Scene], None]] = {
    "leak": lambda scene: scene.hog(rate=20),
    "burst-4k": lambda scene: scene.hog(),
    "burst-thp": lambda scene: scene.hog(kind="thp"),
    "forks": lambda scene: scene.hog(kind="fork", rate=100),
    "tmpfs": lambda scene: scene.hog(kind="tmpfs", rate=100),
    "files": Scene.displace,
    "files-slow-disk": Scene.displace_slowly,
    "memory-high": Scene.throttle,
    "zram": lambda scene: scene.hog(mib=scene.mib, rate=50),
}


def available() -> int:
    return meminfo.read()["MemAvailable"]


def oom_kills() -> int:
    return int(Path("/proc/vmstat").read_text().partition("oom_kill ")[2].split()[0])


def watch(scene: Scene, load: str) -> Seen:
    before = statistics.median(scene.speed() for _ in range(_BEFORE))
    killed, left, speeds = oom_kills(), available(), list[float]()
    LOADS[load](scene)
    began, relief = time.monotonic(), None
    while relief is None and time.monotonic() - began < _MOST_S:
        left = min(left, available())
        speeds.append(scene.speed() / before)
        if not scene.hog_waits and speeds[-1] > 0.5:
            relief = time.monotonic() - began
    return Seen(relief, oom_kills() - killed, scene.innocents(), statistics.fmean(speeds), left)


# -- the peers ---------------------------------------------------------------------------------------------------------


@contextmanager
def managed(wanted: bool) -> Iterator[Path | None]:
    """The cgroup of a unit below which systemd-oomd kills, while that is wanted; it starts systemd-oomd by itself."""
    if not wanted:
        yield None
        return
    properties = [word for each in (*_MANAGED, "Delegate=yes", "Type=exec") for word in ("-p", each)]
    subprocess.run(["systemd-run", "-q", "--unit=outrace-peers", *properties, "sleep", "infinity"], check=True)
    try:
        own = Path("/sys/fs/cgroup/system.slice/outrace-peers.service")
        (own / "own").mkdir()  # a cgroup with processes of its own hands no controller down
        until(lambda: _moved(own), "systemd-run's process to move")
        yield own
    finally:
        subprocess.run(["systemctl", "stop", "outrace-peers", *_OOMD], check=True)
        subprocess.run(["systemctl", "mask", "-q", *_OOMD], check=True)


def _moved(cgroup: Path) -> bool:
    """Move what is in the cgroup into ``own`` below it; whether it is empty now."""
    pids = sorted(cgroup_procs.pids_in(str(cgroup)))
    for pid in pids:
        (cgroup / "own/cgroup.procs").write_text(str(pid))
    return not pids


def show(unit: str, what: str) -> str:
    command = ["systemctl", "show", "--value", "-p", what, unit]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


@contextmanager
def swap(wanted: bool) -> Iterator[None]:
    """Half of the machine's memory as zram, while that is wanted."""
    if not wanted:
        yield
        return
    subprocess.run(["modprobe", "zram"], check=True)
    device = Path("/sys/block/zram0")
    (device / "disksize").write_text(str(meminfo.mem_total() // 2))
    try:
        subprocess.run(["mkswap", "-q", "/dev/zram0"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["swapon", "/dev/zram0"], check=True)
        yield
    finally:
        subprocess.run(["swapoff", "/dev/zram0"], check=False)
        (device / "reset").write_text("1")


@contextmanager
def running(peer: str, node: LabNode, place: Path) -> Iterator[int | None]:
    """The peer, ready; its pid."""
    if peer == "outrace":
        own = place / "own.yaml"
        own.write_text(RELAXING.format(share=SHARE))
        # The lab's pods are manifests'; for those of a VM (services) this is the default, but for rounding.
        line = f"memory.available<{(100 * MIB + meminfo.kernels_share()) // MIB}Mi"
        with LabDaemon(node, "--enforce", "--config", str(own), "--eviction-hard", line, machine=True) as daemon:
            yield daemon.pid
    elif peer == "systemd-oomd":
        subprocess.run(["systemctl", "unmask", "-q", *_OOMD], check=True)  # as in the box of `make test-vagrant`
        subprocess.run(PEERS[peer], check=True)
        yield int(show(peer, "MainPID"))
    elif peer == "none":
        yield None
    else:
        with subprocess.Popen(PEERS[peer], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                time.sleep(_SETTLE_S)
                if process.poll() is not None:
                    raise MonitorError(f"{peer} ended with status {process.returncode}")
                yield process.pid
            finally:
                process.kill()


def once(peer: str, load: str) -> Seen:
    """One run, on a machine as it was before."""
    Path("/proc/sys/vm/drop_caches").write_text("3")
    with ExitStack() as stack:
        disk = "/dev/shm" if load == "zram" else "/var/tmp"  # files in memory are swapped, and not written back
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outrace-peers-", dir=disk)))
        stack.enter_context(swap(load == "zram"))
        parent = stack.enter_context(managed(peer == "systemd-oomd"))
        node = stack.enter_context(LabNode("peers", meminfo.mem_total(), parent=parent, swaps=True))
        for above in (node.cgroup.parent, node.cgroup):  # systemd takes it away where no unit needs it
            with suppress(OSError):
                (above / "cgroup.subtree_control").write_text("+io")
        stack.enter_context(running(peer, node, place))
        return watch(Scene(node, place), load)


def idle(peer: str) -> Row:
    """What the peer takes while nothing happens."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outrace-peers-", dir="/var/tmp")))
        parent = stack.enter_context(managed(peer == "systemd-oomd"))
        node = stack.enter_context(LabNode("peers", meminfo.mem_total(), parent=parent))
        pid = stack.enter_context(running(peer, node, place))
        assert pid is not None
        time.sleep(_SETTLE_S)
        pids = processes(pid)
        before = sum(map(cpu_ns, pids))
        time.sleep(_IDLE_S)
        spent = (sum(map(cpu_ns, pids)) - before) / 1e6 * 60 / _IDLE_S
        return {"name": "idle", "peer": peer, "rss_bytes": sum(map(memory, pids)), "cpu_ms": spent}


def row(load: str, peer: str, seen: Sequence[Seen]) -> Row:
    relief = [one.relief_s for one in seen if one.relief_s is not None]
    made: Row = {"name": load, "peer": peer, "unit": "s", "runs": len(seen), "relieved": len(relief)}
    made |= {"relief_s": statistics.median(relief)} if relief else {}
    made |= {key: sum(getattr(one, key) for one in seen) for key in ("oom_kills", "innocents")}
    return made | {
        "speed": statistics.median(one.speed for one in seen),
        "left_bytes": statistics.median(one.left for one in seen),
    }


def check(peers: Sequence[str]) -> None:
    """Raises CannotError where this machine may not be lost, or a peer is missing."""
    if EXPENDABLE not in Path("/proc/cmdline").read_text().split():
        raise CannotError("bench peers takes all memory of the machine", "run it in a guest: make peers")
    missing = [peer for peer in peers if peer not in ("none", "outrace") and not _installed(peer)]
    if missing:
        raise CannotError(f"not installed: {', '.join(missing)}", f"apt install {' '.join(missing)}, or leave it out")


def _installed(peer: str) -> bool:
    paths = (f"/usr/sbin/{peer}", f"/usr/bin/{peer}", f"/lib/systemd/{peer}")
    return any(Path(path).exists() for path in paths)


@bench("name peer runs relieved relief_s oom_kills innocents speed left_bytes rss_bytes cpu_ms")
@number("--runs", 3, "Runs of each load with each peer; one takes up to 45 s.")
@click.option("--loads", type=Listed(click.Choice(list(LOADS))), default=",".join(LOADS), help="Only these loads.")
@click.option("--peers", type=Listed(click.Choice(list(PEERS))), default=",".join(PEERS), help="Only these peers.")
def peers(runs: int, loads: tuple[str, ...], peers: tuple[str, ...]) -> Found:
    """Let memory run out, or be thrashed, with each peer in turn; only in a guest that may be lost.

    relief_s: until the pod that grew is gone (memory-high: or may have twice as much) and the reader of files has half
    of its speed again. innocents: pods killed that did not grow. speed: the reader's meanwhile, as a share of before.
    left: the least MemAvailable that was seen. idle: memory and milliseconds of CPU a minute of the peer while nothing
    happens.
    """
    check(peers)
    psutil.Process()  # imported before memory runs out
    Path("/proc/self/oom_score_adj").write_text("-999")
    rows = [idle(peer) for peer in peers if peer != "none"]
    for load in loads:
        for peer in peers:
            seen = []
            for run in range(runs):
                seen.append(once(peer, load))
                progress(f"{load}, {peer}: {run + 1} of {runs}: {seen[-1]}")
            rows.append(row(load, peer, seen))
    return Found(rows)

"""A small node made out of one cgroup: its limit is the node's memory, its children are pods with manifests.

Used by the demo, the benchmarks and the tests, on the real kernel. Nothing outside the node's own cgroup is touched,
and it disappears however the owner ends (monitor/lab/janitor.py).
"""

from __future__ import annotations

import errno
import json
import os
import select
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from monitor.errors import CannotError, MonitorError
from monitor.kernel import cgroupfs
from monitor.lab import janitor

Qos = Literal["Guaranteed", "Burstable", "BestEffort"]
MIB = 1 << 20
_HERE = Path(__file__).parent
#: Only a hang takes so long, also on an emulated machine.
PATIENCE_S = 120.0
#: Without site-packages and environment: 25 ms to start instead of 60.
PYTHON = (sys.executable, "-S", "-E")


@dataclass(frozen=True)
class LabPod:
    """A pod of the lab node: where its cgroups are and the manifest that says so."""

    namespace: str
    name: str
    uid: str
    qos: Qos
    cgroup: Path
    containers: dict[str, Path]
    manifest: Path


class Child:
    """A script of the lab in a cgroup, told what to do by lines on stdin, answering by lines on stdout."""

    def __init__(self, script: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*PYTHON, str(script), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._buffer = b""
        #: The last line a closed child had written to stderr.
        self.complaint = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, line: str) -> None:
        """Send one line. A child that is dead already is noticed by whoever waits for its answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self, timeout: float = PATIENCE_S) -> str:
        """The next line the child prints, or "" if it ended instead. MonitorError after ``timeout`` seconds."""
        assert self.process.stdout is not None
        out = self.process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not select.select([out], [], [], timeout)[0]:
                raise MonitorError(f"process {self.pid} of the lab did not answer within {timeout:g} s")
            data = os.read(out, 4096)
            if not data:
                return ""
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    def expect(self, word: str, timeout: float = PATIENCE_S) -> str:
        """As `answer`, which must begin with ``word``; returns what follows. MonitorError if it does not."""
        line = self.answer(timeout)
        first, _, rest = line.partition(" ")
        if first == word:
            return rest
        self.close()
        reason = self.complaint or f"it ended with {self.process.returncode}"
        raise MonitorError(f"process {self.pid} of the lab said {line!r} instead of {word!r}: {reason}")

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """Exit status (negative: the signal). MonitorError after ``timeout`` seconds."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise MonitorError(f"process {self.pid} of the lab did not end within {timeout:g} s") from None

    def close(self) -> None:
        """End it, if it has not ended, and reap it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stderr is not None and not self.process.stderr.closed:
            text = self.process.stderr.read().decode(errors="replace").strip()
            self.complaint = text.splitlines()[-1] if text else ""
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass  # an unsent line of a child that died


class Hog(Child):
    """A process that takes memory in a cgroup when told to; options are those of monitor/lab/hog.py."""

    def __init__(self, cgroup: Path | None, **options: str | int) -> None:
        words = [f"{key}={value}" for key, value in options.items()]
        if cgroup is not None:
            words.append(f"cgroup={cgroup}")
        super().__init__(_HERE / "hog.py", *words, f"parent={os.getpid()}")
        try:
            self.expect("ready")
        except BaseException:
            self.close()
            raise

    def go(self) -> None:
        """Take the memory; `expect("grown")` waits until it is taken."""
        self.say("go")

    def free(self) -> None:
        """Give the memory back and wait until that is done."""
        self.say("free")
        self.expect("freed")


@dataclass
class LabNode:
    """Context manager: a cgroup `outrace-NAME-PID` limited to ``memory_bytes``, pods in it, and their manifests."""

    name: str
    memory_bytes: int
    hierarchy: cgroupfs.Hierarchy = field(default_factory=cgroupfs.detect)
    pods: dict[str, LabPod] = field(default_factory=dict, init=False)
    children: list[Child] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        stem = f"outrace-{self.name}-{os.getpid()}"
        self.cgroup = self.hierarchy.root / stem
        taken = 1
        while self.cgroup.exists():
            taken += 1
            self.cgroup = self.hierarchy.root / f"{stem}-{taken}"
        self.manifests = Path(tempfile.gettempdir())  # until __enter__
        self._janitor: subprocess.Popen[bytes] | None = None
        self._pidfds: list[int] = []
        self._peak_fd = -1
        self._directories: list[str] = []
        self._freezers: list[str] = []

    def __enter__(self) -> Self:
        # The janitor first: whatever is made after it has someone to remove it.
        self._janitor = subprocess.Popen(
            [*PYTHON, str(_HERE / "janitor.py"), str(self.cgroup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert self._janitor.stdout is not None
            if self._janitor.stdout.readline() != b"ready\n":
                raise MonitorError("the lab's janitor did not start")
            self.manifests = Path(tempfile.mkdtemp(prefix=f"{self.cgroup.name}-"))
            self.also_remove(self.manifests)
            cgroupfs.make(self.cgroup)
            cgroupfs.set_limit(self.cgroup, self.memory_bytes)
            # With swap, a full node swaps out instead of calling the OOM killer. v1's pods inherit their swappiness.
            for name in ("memory.swap.max", "memory.swappiness"):
                if (self.cgroup / name).exists():
                    (self.cgroup / name).write_text("0")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the node's own processes, remove its cgroups and files. MonitorError if a cgroup would not go."""
        for child in self.children:
            child.close()
        self._close_peak()
        gone = janitor.clean(str(self.cgroup), self._pidfds, self._directories, self._freezers)
        for fd in self._pidfds:
            os.close(fd)
        self.children, self._pidfds, self._directories, self._freezers = [], [], [], []
        if self._janitor is not None:
            assert self._janitor.stdin is not None
            assert self._janitor.stdout is not None
            self._janitor.stdin.close()
            self._janitor.wait()
            self._janitor.stdout.close()
            self._janitor = None
        if not gone:
            held = cgroupfs.processes(self.cgroup)
            raise MonitorError(f"the lab's cgroup {self.cgroup} could not be removed: processes {held}")

    def _send_to_janitor(self, line: str) -> None:
        assert self._janitor is not None, "the lab node has not been entered"
        assert self._janitor.stdin is not None
        self._janitor.stdin.write(f"{line}\n".encode())
        self._janitor.stdin.flush()

    def also_end(self, pid: int) -> None:
        """Process ``pid`` (one the owner started) ends with the node: SIGTERM, after 5 s SIGKILL."""
        self._pidfds.append(os.pidfd_open(pid))
        self._send_to_janitor(f"pid {pid}")

    def also_remove(self, directory: Path) -> None:
        """Directory ``directory`` (one the owner made, also under bpffs) is removed with the node."""
        self._directories.append(str(directory))
        self._send_to_janitor(f"dir {directory}")

    def also_thaw(self, freezer: Path) -> None:
        """The v1 freezer cgroup ``freezer`` (one the owner made) is thawed and removed with the node."""
        self._freezers.append(str(freezer))
        self._send_to_janitor(f"freezer {freezer}")

    # -- pods ----------------------------------------------------------------------------------------------------------

    def add_pod(
        self,
        name: str,
        qos: Qos = "BestEffort",
        request: int = 0,
        limit: int = 0,
        containers: int = 1,
        *,
        namespace: str = "lab",
        priority: int = 0,
        grace_s: int = 30,
        under: str = "",
    ) -> LabPod:
        """Make a pod: cgroup directories for it and its containers, and its manifest.

        ``request`` and ``limit`` are bytes of memory of the whole pod, shared evenly by the containers; a Guaranteed
        pod's limit is its request. A limit also limits the pod's cgroup. ``under``: the cgroup below the node's that
        the pod goes into, if not directly into that.
        """
        if qos == "Guaranteed":
            limit = limit or request
        uid = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.cgroup}/{namespace}/{name}"))
        cgroup = cgroupfs.make(self.cgroup / under / f"pod{uid}")
        if limit:
            cgroupfs.set_limit(cgroup, limit)
        directories = {f"c{i}": cgroupfs.make(cgroup / f"c{i}") for i in range(containers)}
        resources: dict[str, dict[str, str]] = {}
        if request:
            resources["requests"] = {"memory": str(request // containers)}
        if limit:
            resources["limits"] = {"memory": str(limit // containers)}
        if qos == "Guaranteed":
            for amounts in resources.values():
                amounts["cpu"] = "100m"
        relative = cgroup.relative_to(self.hierarchy.root)
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid,
                "annotations": {
                    "outrace/cgroup": str(relative),
                    **{f"outrace/cgroup.{c}": str(relative / c) for c in directories},
                },
            },
            "spec": {
                "priority": priority,
                "terminationGracePeriodSeconds": grace_s,
                "containers": [{"name": c, "image": "lab", "resources": resources} for c in directories],
            },
        }
        path = self.manifests / f"{namespace}-{name}.json"
        # Complete before it has its name: a watcher of the directory never reads half a manifest.
        unfinished = self.manifests / f".{path.name}.new"
        unfinished.write_text(json.dumps(manifest, indent=1))
        unfinished.rename(path)
        pod = LabPod(namespace, name, uid, qos, cgroup, directories, path)
        self.pods[name] = pod
        return pod

    def remove_pod(self, pod: LabPod) -> None:
        """Take the manifest away, end the pod's processes and remove its cgroups."""
        pod.manifest.unlink(missing_ok=True)
        janitor.remove_tree(str(pod.cgroup))
        self.pods.pop(pod.name, None)

    def start_hog(self, pod: LabPod, container: str = "c0", **options: str | int) -> Hog:
        """Start a hog in a container of ``pod`` and wait until it is ready (options: monitor/lab/hog.py)."""
        hog = Hog(pod.containers[container], **options)
        self.children.append(hog)
        return hog

    def start(self, pod: LabPod, script: Path, *arguments: str, container: str = "c0") -> Child:
        """Start another script of the lab; it gets ``cgroup=DIR`` and ``parent=PID`` to join and watch."""
        child = Child(script, *arguments, f"cgroup={pod.containers[container]}", f"parent={os.getpid()}")
        self.children.append(child)
        return child

    # -- what the kernel counted ---------------------------------------------------------------------------------------

    def usage(self) -> int:
        """Bytes charged to the node now."""
        return cgroupfs.read_cgroup(self.hierarchy, self.cgroup).usage

    def oom_kills(self) -> int:
        """Processes the OOM killer killed in the node, as the kernel counts them."""
        if self.hierarchy.version == 2:
            return _count(self.cgroup / "memory.events", "oom_kill")
        # v1 counts in the cgroup of the victim only: the counters of its ancestors stay 0.
        return sum(
            _count(directory / "memory.oom_control", "oom_kill")
            for directory in (self.cgroup, *cgroupfs.descendants(self.cgroup))
        )

    def reset_peak(self) -> None:
        """Start measuring `peak` anew. Before Linux 6.12 the one of cgroup v2 cannot be: it goes on from the node's
        beginning. Raises CannotError where there is none.
        """
        if self.hierarchy.version == 1:
            (self.cgroup / "memory.max_usage_in_bytes").write_text("0")
            return
        # What is written counts for whoever reads through the same descriptor (Documentation/admin-guide/cgroup-v2).
        self._close_peak()
        path = self.cgroup / "memory.peak"
        try:
            self._peak_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            os.write(self._peak_fd, b"0")
        except FileNotFoundError:
            raise CannotError("this kernel's cgroup v2 has no memory.peak", "run Linux 5.19 or newer") from None
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EACCES):
                raise
            self._close_peak()

    def peak(self) -> int:
        """The most bytes charged to the node at once, since it was made or `reset_peak`."""
        if self.hierarchy.version == 1:
            return int((self.cgroup / "memory.max_usage_in_bytes").read_text())
        if self._peak_fd >= 0:
            return int(os.pread(self._peak_fd, 32, 0))
        return int((self.cgroup / "memory.peak").read_text())

    def _close_peak(self) -> None:
        if self._peak_fd >= 0:
            os.close(self._peak_fd)
            self._peak_fd = -1


def _count(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return 0  # a cgroup that vanished while the tree was walked took its counter along
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key} ")), 0)

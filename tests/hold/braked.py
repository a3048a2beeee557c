"""A small node with a pod in it that can be braked: its memory cgroup and, on v1, the same path in the freezer."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from monitor.actions.changes import Change
from monitor.actions.ledger import Ledger, attributes_of
from monitor.actions.undo import undo
from monitor.hold.pod_brake import FREEZE, LIMIT, PodBrake
from monitor.kernel import cgroupfs
from monitor.lab import janitor
from monitor.lab.child import Child
from tests import live

MIB = 1 << 20
HIERARCHY = cgroupfs.detect()
V2 = HIERARCHY.version == 2
LIMIT_FILE = "memory.max" if V2 else "memory.limit_in_bytes"
COMPANION = "memory.oom.group" if V2 else "memory.oom_control"
FREEZE_FILE = "cgroup.freeze" if V2 else "freezer.state"


class Resident(live.Puppet):
    """One that can be ended: frozen by a test that fails it could not, on v1, and that test ended at its time limit."""

    def __init__(self, cgroup: Path, thaw: Callable[[], None]) -> None:
        self._thaw = thaw
        super().__init__(cgroup)

    def close(self) -> None:
        self._thaw()
        super().close()


#: All of a brake, as a kernel has it.
AUTO = "auto"


class PartialBrake(PodBrake):
    """`LIMIT` alone, as where no freezer is mounted; `FREEZE` alone, as where a limit counts its cgroup alone."""

    def __init__(self, uid: str, cgroup: Path, hierarchy: cgroupfs.Hierarchy, journal: Ledger, kind: str) -> None:
        self._kept = {LIMIT: (LIMIT_FILE, COMPANION), FREEZE: (FREEZE_FILE,)}.get(kind)
        super().__init__(uid, cgroup, hierarchy, journal)

    def _open(self, adopting: bool = False) -> str:
        problem, files = super()._open(adopting), self._ledger.files
        for name in files.keys() - (files.keys() if self._kept is None else self._kept):
            files.pop(name).close()
        return problem


class Stand:
    """``pod`` in ``node``, where ``freezer`` is the pod's cgroup that freezes it (on v2 the pod)."""

    def __init__(self, node: Path, state: Path, freezer_root: Path | None) -> None:
        self.node, self.state = node, state
        self.pod = cgroupfs.make(node / "pod")
        self.journal = Ledger(state)
        self._brakes = ExitStack()
        self.freezer = None if freezer_root is None else freezer_root / self.pod.relative_to(HIERARCHY.root)
        if self.freezer is not None and not V2:
            self.freezer.mkdir(parents=True)

    def brake(self, kind: str = AUTO) -> PodBrake:
        """One that can brake the pod."""
        brake = self.any_brake(kind)
        assert brake.problem == ""
        return brake

    def any_brake(self, kind: str = AUTO, cgroup: Path | None = None) -> PodBrake:
        """Also one that cannot, or of another cgroup. Closed at the end, as of a daemon that was killed before."""
        brake = PartialBrake("uid", cgroup or self.pod, HIERARCHY, self.journal, kind)
        self._brakes.callback(brake.close)
        return brake

    def close(self) -> None:
        """Close the brakes' files; their cgroups are gone."""
        self._brakes.close()

    def puppet(self, below: str = "") -> live.Puppet:
        """A process of the pod, in a cgroup of its own below it if one is named."""
        home = self.pod / below
        if self.freezer is not None and not V2:
            (self.freezer / below).mkdir(parents=True, exist_ok=True)
        puppet = Resident(cgroupfs.make(home) if below else home, self.thaw)
        if self.freezer is not None and not V2:
            (self.freezer / below / "cgroup.procs").write_text(str(puppet.pid))
        return puppet

    @contextmanager
    def hog(self, **options: object) -> Iterator[Child]:
        """A hog in the pod (options: monitor/lab/hog.py)."""
        freezer = "" if V2 or self.freezer is None else self.freezer
        hog = Child("monitor.lab.hog:hog", cgroup=self.pod, freezer=freezer, **options)
        hog.expect("ready")
        try:
            yield hog
        finally:
            self.thaw()
            hog.close()

    def thaw(self) -> None:
        """Whatever a brake has frozen."""
        if self.freezer is not None and not V2:
            for path in (self.freezer, *cgroupfs.below(self.freezer)):
                (path / "freezer.state").write_text("THAWED")
        elif V2:
            (self.pod / "cgroup.freeze").write_text("0")

    def files(self) -> dict[str, str]:
        """What a brake may change, as it is."""
        found = {name: (self.pod / name).read_text() for name in (LIMIT_FILE, COMPANION)}
        found[COMPANION] = found[COMPANION].splitlines()[0]
        if self.freezer is not None:
            found["frozen"] = (self.freezer / ("cgroup.freeze" if V2 else "freezer.self_freezing")).read_text()
        if V2:
            found |= {name: (self.pod / name).read_text() for name in ("memory.high", "pids.max")}
        return found

    def noted(self) -> bool:
        """Whether something is written down at the pod."""
        return self.journal.attribute in os.listxattr(self.pod)

    def oom_kills(self) -> int:
        """Of the node, the pod and what is below it."""
        return sum(cgroupfs.oom_kills(HIERARCHY, path) or 0 for path in (self.node, *cgroupfs.below(self.node)))


def settled(usage: Callable[[], int | None]) -> int:
    """What it is once it stands still."""
    last, now = -1, usage() or 0
    while last != now:
        time.sleep(0.3)
        last, now = now, usage() or 0
    return now


def undo_on(state_dir: Path, on_problem: Callable[[str], object] = lambda _: None) -> list[tuple[Change, str, str]]:
    """As the next start on this state dir does."""
    return list(undo(HIERARCHY, on_problem, attributes_of([state_dir])))


@contextmanager
def stand(state: Path, mib: int = 128) -> Iterator[Stand]:
    with ExitStack() as stack:
        root = HIERARCHY.root if V2 else stack.enter_context(live.freezer_root())
        brakes = stack.enter_context(ExitStack())  # ends after the node: what a test leaves held is not released
        node = stack.enter_context(live.cgroup("hold", mib * MIB))
        made = Stand(node, state, root)
        brakes.callback(made.close)
        if V2:
            cgroupfs.enable_controllers(node, ("pids",))
        try:
            yield made
        finally:
            made.thaw()
            if made.freezer is not None and not V2:
                assert janitor.remove_tree(str(made.freezer.parent))


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Stand]:
    with stand(tmp_path / "state") as found:
        yield found

"""A node of the simulated hot process on which memory is taken and given back at a rate: pods, and a process in no pod.

Pods that are frozen stand still, and capped ones take no more than their cap; an evicted one has given back what it
had after 20 ms; where memory is used up, the kernel takes the largest process.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from monitor.link.messages import PodReleased, PodSeen, Suspended
from monitor.settings.config import RunConfig
from tests.daemon.limited_brake import LimitedBrake, limited_brake
from tests.replay.world import CAPACITY, MIB, SECOND, World, clocked

MS = 1_000_000
#: What no pod is charged for.
OUTSIDE = "outside"
DIES_NS = 20 * MS


class Taking(NamedTuple):
    """Takes so much (MiB; less than 0: gives back) at a rate of MiB a second."""

    name: str
    mib: float
    rate: float


class Node:
    """Of ``size`` MiB, with a hard threshold at ``line``. The rest of the world's capacity is in use all the time."""

    def __init__(self, directory: Path, size: int, line: int, settings: Mapping[str, Any]) -> None:
        rules = {"eviction_hard": {"memory.available": f"{line}Mi"}, "eviction_soft": {}, "enforce": True}
        self._made = lambda: World(RunConfig(**{**rules, **settings}), directory)
        self.line, self._directory = line * MIB, directory
        self._pods: dict[str, PodSeen] = {}
        self._entries: dict[str, Any] = {}
        self._rest = CAPACITY - size * MIB
        self._left: dict[str, float] = {}  # taker -> bytes to be taken still
        self._rates: dict[str, float] = {}
        self._unreported: dict[str, int] = {}
        self.decided: list[Any] = []
        self.told: list[Any] = []
        self.oom_killed: list[str] = []
        self.world = self._made()
        self._hear()

    # the pods that are there

    def pod(self, name: str, has: float = 0, request: int = 0, priority: int = 0, *, known: bool = True) -> None:
        """One that has so much (MiB); if it is not ``known``, `meet` has its manifest come later."""
        place = self._directory / name
        place.mkdir(exist_ok=True)
        qos, critical = "Burstable" if request else "BestEffort", priority >= 2_000_000_000
        about = (name, "lab", name, priority, True, request * MIB, qos, critical, 0)
        self._pods[name] = PodSeen(*about, cgroup=str(place), containers={})
        self.world.table.sets[self._at(name)] = int(has * MIB)
        if known:
            self.meet(name)

    def meet(self, name: str) -> None:
        self._entries[name] = self.world.registry.put(self._pods[name])
        self.world.registry.refresh()

    def begin(self) -> None:
        """All pods are known: a daemon begins to decide."""
        self._count()
        self.world.decider.begin()

    def restart(self) -> None:
        """Another daemon, that knows nothing of before."""
        known, before = list(self._entries), self.world
        self.world = self._made()
        self.world.table.sets, self.world.now_ns = before.table.sets, before.now_ns
        for name in known:
            self.meet(name)
        self._hear()

    def remove(self, name: str) -> None:
        """The pod ends by itself, and its manifest goes."""
        self._empty(name)
        del self._entries[name], self._pods[name]
        self.world.decider.forget(name)
        self._count()

    @property
    def now_ns(self) -> int:
        return self.world.now_ns

    def brake(self, uid: str, cgroup: Path, *_: object) -> LimitedBrake:
        return limited_brake(self.world, uid, cgroup)

    @property
    def left(self) -> int:
        return CAPACITY - self.world.working_set

    def usage(self, name: str) -> int:
        return self.world.table.working_set(self._at(name))

    def reasons(self) -> list[str]:
        """What evictions were suspended for, and why they are not any more."""
        return [message.resumed or message.reason for message in self.told if isinstance(message, Suspended)]

    def held(self) -> list[str]:
        """Pods that are held now."""
        return [uid for uid, brake in self.world.brakes.items() if brake.is_held]

    def holds_ended(self) -> list[tuple[str, str]]:
        """Of which pods, and why."""
        return [(message.pod, message.why) for message in self.told if isinstance(message, PodReleased)]

    # what happens

    def take(self, *takings: Taking) -> None:
        """From now on, until they have it or die."""
        for name, mib, rate in takings:
            self._left[name], self._rates[name] = mib * MIB, rate * MIB / SECOND

    def play(self, *takings: Taking, until: Callable[[], object] = lambda: False) -> None:
        """Have them take that, to the end or ``until`` something; after a minute the test has failed."""
        self.take(*takings)
        end_ns = self.world.now_ns + 60 * SECOND
        while any(self._left.get(name) for name, *_ in takings) and not until():
            self._turn(MS)
            assert self.world.now_ns < end_ns, "it takes for ever"

    def stand(self, seconds: float) -> None:
        """So long nothing but what is due; processes that take memory go on."""
        end_ns = self.world.now_ns + int(seconds * SECOND)
        while self.world.now_ns < end_ns:
            self._turn(MS if any(self._left.values()) or self.world.evictor.current else 5 * MS)

    def _hear(self) -> None:
        world = self.world
        world.sent, world.told = self.decided, self.told
        world.ready = True
        world.trigger.prepare = lambda may_arm: setattr(world.trigger, "armed", may_arm)
        world.trigger.armed = False
        world.decider.may_act = False

    def _count(self) -> None:
        self.world.working_set = self._rest + sum(self.usage(name) for name in (OUTSIDE, *self._pods))

    def _turn(self, ns: int) -> None:
        world, decider = self.world, self.world.decider
        before = self.left
        world.now_ns += ns
        moved = self._grow(ns)
        self._count()
        if self.left <= 0:
            self._oom_kill()
        if moved:
            decider.rank_moved()
            decider.prepare()
        elif self._is_due(decider.figures.due_ns()):
            decider.figures.note(world.now_ns)
        if any(self.left < line <= before for line in world.watches[0].lines):
            decider.run_pass(world.now_ns, world.watches[0])
        if self._is_due(decider.pass_due_ns()):
            decider.run_pass()
        if self._is_due(decider.pods.reread_ns):
            decider.reread()
        if world.config.holds:
            decider.holds.look_uncrossed(world.now_ns)
            world.look()
        current = world.evictor.current
        if current is not None and current.signalled_ns + DIES_NS <= world.now_ns:
            self._die(current.uid)

    def _at(self, name: str) -> int:
        """The index of its memory in the table."""
        return 0 if name == OUTSIDE else (self._directory / name).stat().st_ino

    def _is_due(self, at_ns: int | None) -> bool:
        return at_ns is not None and at_ns <= self.world.now_ns

    def _grow(self, ns: int) -> bool:
        """Whether a step was taken that the kernel reports."""
        moved = False
        for name, left in list(self._left.items()):
            more = int(min(abs(left), self._rates[name] * ns)) * (1 if left > 0 else -1)
            more = min(more, self._may_take(name))
            self._left[name] = 0.0 if abs(left - more) < 1 else left - more
            moved |= self._charge(name, more)
        return moved

    def _may_take(self, name: str) -> int:
        """Until its cap; nothing while it is frozen."""
        brake = self.world.brakes.get(name)
        if brake is None or not brake.is_held:
            return CAPACITY
        return max(0, brake.limit - brake.usage()) if brake.runs else 0

    def _charge(self, name: str, more: int) -> bool:
        """Whether that is a step that the kernel reports."""
        self._unreported[name] = self._unreported.get(name, 0) + more
        self.world.table.sets[self._at(name)] = self.usage(name) + more
        if abs(self._unreported[name]) < MIB:
            return False
        self._unreported[name] = 0
        if name in self._entries and name in self.world.registry.by_uid:
            self.world.decider.step(self.world.registry.by_uid[name].index, self.usage(name))
        return True

    def _empty(self, name: str) -> None:
        self._left.pop(name, None)
        self.world.table.sets[self._at(name)] = 0
        self._count()

    def _oom_kill(self) -> None:
        largest = max((OUTSIDE, *self._pods), key=self.usage)
        self.oom_killed.append(largest)
        self._empty(largest)

    def _die(self, name: str) -> None:
        self._empty(name)
        self.world.registry.move(self.world.registry.by_uid[name], 0)
        self.world.end(0, fires=False)
        self.world.decider.run_pass()
        self.world.decider.prepare()


@contextmanager
def simulated(directory: Path, size: int, line: int, **settings: Any) -> Iterator[Node]:
    """With the daemon's modules on its clock, whichever daemon it is."""
    node = Node(directory, size, line, settings)
    with clocked(node):
        yield node

"""Following real pods to their end, with stand-ins for the counters and the pods that are known."""

import select
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.actions.evict import REAP_AFTER_NS, STUCK_NS, Eviction
from monitor.actions.victim import Victim
from monitor.hot.evictor import EvictionNote, Evictor
from monitor.kernel import cgroupfs
from monitor.kernel.procfs import wants_cpu
from monitor.kernel.wire import EVICTION
from monitor.link.messages import NAMES, Answer, LogLine, Reap
from tests import live
from tests.daemon.stand_ins import outbox

pytestmark = pytest.mark.kernel
NUMBER = 7


class Bench:
    """An evictor and the messages about one pod, which holds ``held`` bytes."""

    def __init__(self, cgroup: Path) -> None:
        self.held = 64 * live.MIB
        self.sent: list[Any] = []
        self.epoll = select.epoll()
        self.victim = Victim("uid", cgroup, cgroupfs.detect().version)
        self.victim.refresh()
        self.entry = SimpleNamespace(uid="uid", index=0, usage=self.held, cgroup_id=1, cgroup=cgroup)
        nothing: Any = lambda *_: None  # noqa: E731
        gauge: Any = SimpleNamespace(reread=nothing, watches=[], table=SimpleNamespace(working_set=lambda _: self.held))
        registry: Any = SimpleNamespace(by_uid={"uid": self.entry}, move=nothing, set_evicted=nothing)
        trigger: Any = SimpleNamespace(take=lambda _: self.victim, stand_down=lambda: None)
        loop: Any = SimpleNamespace(register=lambda fd, _: self.epoll.register(fd), unregister=self.epoll.unregister)
        note = EvictionNote(memoryview(bytearray(EVICTION.size)).cast("Q"))
        self.evictor = Evictor(gauge, registry, trigger, outbox(self.sent.append), loop, note)

    def begin(self) -> Eviction:
        eviction = self.evictor.begin(self.entry, 0)
        eviction.decision_id, eviction.name = NUMBER, "lab/pod"
        return eviction

    def endings(self, timeout: float = 0) -> int:
        """How many processes are reported to have ended now; they are not reported again."""
        found = self.epoll.poll(timeout)
        for fd, _ in found:
            self.evictor.ended(fd)
        return len(found)

    def messages(self) -> list[str]:
        return [message.msg if isinstance(message, LogLine) else NAMES[type(message)] for message in self.sent]


pod = live.fixture(live.cgroup, "evictor")


def test_it_is_looked_after_when_that_is_due_or_the_last_has_ended(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live.Puppet(pod) as first, live.Puppet(pod) as second:
        bench = Bench(pod)
        with monkeypatch.context() as patch:
            patch.setattr(Victim, "kill", lambda _: None)  # they are there at the first look
            eviction = bench.begin()
            assert not bench.evictor.follow(eviction.next_look_ns, 0)
        assert eviction.next_look_ns > eviction.signalled_ns, "the evictor did not sample"
        bench.victim.kill()
        for puppet in (first, second):
            puppet.wait()
        ended = 0
        while ended < 2:
            assert eviction.next_look_ns > 0
            ended += bench.endings(live.TIMEOUT_S)
        assert eviction.next_look_ns == 0
        assert bench.evictor.follow(1, 0), "they are gone"
        assert bench.messages() == [], "what they held is not back yet"
        held, bench.held = bench.held, 0
        bench.evictor.pending.look(2)
        assert bench.messages() == ["evicted"]
        assert (bench.sent[-1].ts_ns, bench.sent[-1].settled_ns, bench.sent[-1].freed) == (1, 2, held)


def test_a_stuck_pod_is_reported_when_it_goes_and_wakes_nobody_for_ever(pod: Path) -> None:
    with live.Puppet(pod) as first, live.Puppet(pod) as second, live.freezer() as freezer:
        for puppet in (first, second):
            live.freeze(freezer, puppet.pid)
        bench = Bench(pod)
        eviction = bench.begin()
        assert not bench.evictor.follow(eviction.signalled_ns + STUCK_NS // 2, 0)
        assert bench.evictor.follow(eviction.signalled_ns + 2 * STUCK_NS, 0)
        assert bench.evictor.current is None
        assert bench.evictor.is_stuck("uid")
        frozen = "an evicted pod gives nothing back (frozen, or in an endless system call): going on without it"
        assert bench.messages() == ["reap", frozen]
        assert bench.sent[-1].fields["bytes"] == bench.held
        bench.evictor.follow_stuck(time.monotonic_ns())
        assert bench.evictor.is_stuck("uid")
        (freezer / "freezer.state").write_text("THAWED")
        for puppet in (first, second):
            puppet.wait()
        ended = 0
        while ended < 2:
            ended += bench.endings(live.TIMEOUT_S)
        assert bench.epoll.poll(0) == []
        bench.held = 0
        bench.evictor.follow_stuck(time.monotonic_ns())
        assert not bench.evictor.is_stuck("uid")
        assert bench.messages()[2:] == ["evicted"]


@pytest.mark.parametrize("answer", ["not asked", None, NUMBER - 1, NUMBER])
def test_the_side_is_waited_for_until_it_answers(pod: Path, answer: int | str | None) -> None:
    """While it is at work, and where it was asked. (A process at full speed stands for it.)"""
    with live.Puppet(pod) as puppet, live.Puppet(pod.parent) as side, live.freezer() as freezer:
        live.freeze(freezer, puppet.pid)
        side.tell("while True: pass")
        live.until(lambda: wants_cpu([side.pid]), "the side to be at work")
        bench = Bench(pod)
        eviction = bench.begin()
        if answer != "not asked":
            assert not bench.evictor.follow(eviction.signalled_ns + 2 * REAP_AFTER_NS, side.pid)
            assert bench.sent == [Reap(NUMBER, [puppet.pid])]
        if isinstance(answer, int):
            bench.evictor.answered(Answer("reap", answer))
        is_over = answer in ("not asked", NUMBER)
        assert bench.evictor.follow(eviction.signalled_ns + 2 * STUCK_NS, side.pid) is is_over
        if not is_over:
            assert bench.evictor.follow(eviction.signalled_ns + 4 * STUCK_NS, side.pid + 1), "another was asked"

"""The next victim, kept ready: real pods, in a registry that stands in for the real one."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.actions.victim import SPARED
from monitor.hot.trigger import _EMPTY_NS, _REFRESH_NS, Trigger
from tests import live

pytestmark = pytest.mark.kernel

pod = live.fixture(live.cgroup, "next")


def ready(pod: Path, *, in_kernel: bool = False) -> tuple[Trigger, Any, memoryview]:
    """The pod is the next victim and prepared: the trigger, its entry, and the words that the kernel has of it."""
    entry: Any = SimpleNamespace(uid="uid", cgroup=pod, cgroup_id=7)
    registry: Any = SimpleNamespace(first=lambda: entry, by_uid={"uid": entry})
    words = memoryview(bytearray(32)).cast("Q")
    trigger = Trigger(words, registry, 1, in_kernel=in_kernel)
    trigger.prepare()
    return trigger, entry, words


def test_who_came_to_an_empty_pod_is_prepared_soon(pod: Path) -> None:
    trigger, entry, _ = ready(pod)
    (empty,) = trigger._prepared.values()
    with live.Puppet(pod) as late:
        empty.prepared_ns -= _EMPTY_NS
        trigger.prepare()
        # That it is looked at again when it is taken would hide it.
        (victim,) = trigger._prepared.values()
        assert set(victim.pidfds) == {late.pid}
        assert trigger.take(entry) is victim
        victim.close()


def test_a_kill_that_would_reach_nobody_is_looked_at_again(pod: Path) -> None:
    """By pidfds alone, as on cgroup v1."""
    trigger, entry, _ = ready(pod)
    with live.Puppet(pod) as late:
        victim = trigger.take(entry)
        victim.kill()
        assert late.wait() == -9
        victim.close()


def test_a_victim_that_takes_long_to_look_at_stays_prepared(pod: Path) -> None:
    """A part of a look that took 250 ms (a lock, an emulated CPU) rests for a second; its victim was closed then."""
    trigger, *_ = ready(pod)
    (victim,) = trigger._prepared.values()
    victim.unfinished, victim.rest_ns, victim.prepared_ns = True, 4 * _REFRESH_NS, victim.prepared_ns - _REFRESH_NS - 1
    before_ns = time.monotonic_ns()
    trigger.prepare()
    assert list(trigger._prepared.values()) == [victim]
    assert victim.prepared_ns >= before_ns
    victim.close()


def test_the_kernel_is_not_armed_for_a_pod_with_somebody_spared_in_it(pod: Path) -> None:
    """The kernel would signal any process of the pod that charges memory, the helper among them."""
    with live.Puppet(pod), live.Puppet(pod) as side:
        for is_spared in (False, True):
            if is_spared:
                SPARED.add(side.pid)
            trigger, _, word = ready(pod, in_kernel=True)
            assert bool(word[0]) == (not is_spared)
            trigger.forget("uid")
            assert word[0] == 0, "a pod that is none any more is not signalled"


def test_the_pod_that_the_kernel_kills_is_finished_before_the_pass(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other processes need no decision any more; a pod that the kernel was not armed for needs one."""
    monkeypatch.setattr("monitor.hot.trigger._REFRESH_NS", 1 << 60)  # this process may have no CPU for seconds
    with live.Puppet(pod) as other:
        trigger, _, word = ready(pod, in_kernel=True)
        assert trigger.ready("uid") is None  # armed: no process was signalled
        word[3], word[0] = word[0], 0  # as `pull` in bpf/pressure.c does
        assert trigger.ready("another") is None
        victim = trigger.ready("uid")
        victim.kill()
        assert other.wait() == -9
        victim.close()

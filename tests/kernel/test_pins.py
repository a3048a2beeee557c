"""Opening what is pinned: rings that deliver, programs that run, links that attach and let go."""

import os
from pathlib import Path

import pytest

from monitor.errors import MonitorError
from monitor.kernel.pins import HOOKS, MAPS, TRACEPOINTS, Pins, Ring, counts, pin
from monitor.kernel.readable import readable
from monitor.kernel.wire import COUNTS
from tests import live

pytestmark = pytest.mark.kernel
MIB = live.MIB


def test_every_pin_opens_and_no_descriptor_is_inherited() -> None:
    pins = Pins.open(live.pin_dir())
    before = len(os.listdir("/proc/self/fd"))
    always = TRACEPOINTS.keys() - HOOKS["memcg-tracepoint"]
    for name in (*(f"map_{name}" for name in MAPS), *(f"prog_{name}" for name in (*always, *pins.pressure))):
        fd = pins.fd(name)
        assert not os.get_inheritable(fd)
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pin_that_is_not_there_is_named() -> None:
    with pytest.raises(MonitorError, match=r"no BPF programs are pinned at /none; start `outrace run`"):
        Pins.open(Path("/none"))
    pins = Pins.open(live.pin_dir())
    with pytest.raises(MonitorError, match="map_nothing: No such file or directory; `outrace unload` and start again"):
        pins.fd("map_nothing")
    with pytest.raises(MonitorError, match="cannot pin /sys/fs/bpf"):
        pin(0, Path("/sys/fs/bpf/outrace-test-not-an-object"))  # descriptor 0 is no BPF object


def test_counts_are_summed_over_every_cpu() -> None:
    with live.cgroup("counts") as pod, live.Watching() as watch:
        cpus = sorted(os.sched_getaffinity(0))
        for cpu in cpus:
            with live.Puppet(pod) as puppet:
                puppet.do(f"os.sched_setaffinity(0, {{{cpu}}})")
                before = watch.counted()["evaluated"]  # not before its start, which is charged on any CPU
                puppet.do("anon(8)")
                # 4 evaluations for each MiB, whichever CPU they are counted on
                assert watch.counted()["evaluated"] - before >= 32
        assert set(counts(watch.pins)) == set(COUNTS)


def test_closing_a_link_detaches() -> None:
    with live.cgroup("links") as pod, live.Watching(attach=False) as watch, live.Puppet(pod) as puppet:

        def evaluated(mib: int) -> int:
            """How often, when the pod is charged so much: 4 times for each MiB, where they are attached."""
            before = watch.counted()["evaluated"]
            puppet.do(f"anon({mib})")
            return watch.counted()["evaluated"] - before

        for _ in range(3):
            links = [watch.pins.attach(name) for name in watch.pins.pressure]
            assert evaluated(2) >= 8
            for link in links:
                os.close(link)
            live.until(lambda: evaluated(1) == 0, "the programs to be detached")


def test_an_error_in_a_callback_is_raised_when_the_ring_is_drained() -> None:
    seen: list[bytes] = []

    def fails(data: bytes) -> None:
        seen.append(data)
        raise ZeroDivisionError

    with live.cgroup("ring") as pod, live.Watching() as watch, live.Puppet(pod) as puppet:
        watch.add(pod, step=MIB)
        watch.sweeper.run()
        watch.consume()
        ring = Ring(watch.pins, "steps", fails)
        try:
            puppet.do("anon(8)")
            assert readable(ring, live.TIMEOUT_S)
            with pytest.raises(ZeroDivisionError):
                ring.consume()
            assert len(seen) >= 7
            assert ring.consume() == 0
        finally:
            ring.close()
        ring.close()  # twice is no error

"""Who wants a CPU, of real processes."""

import signal

import pytest

from monitor.kernel.procfs import wants_cpu
from tests import live

pytestmark = pytest.mark.kernel
GONE = 2**22 + 1


def test_who_runs_wants_a_cpu_and_who_sleeps_is_stopped_or_gone_does_not() -> None:
    with live.cgroup("procfs") as cgroup, live.Puppet(cgroup) as puppet:
        live.until(lambda: not wants_cpu([puppet.pid, GONE]), "it to wait for a line")
        puppet.do("import threading; go = threading.Event()")
        puppet.do("threading.Thread(target=lambda: go.wait() and [None for _ in iter(int, 1)], daemon=True).start()")
        live.until(lambda: not wants_cpu([puppet.pid]), "both threads to wait")
        puppet.do("go.set()")  # the main thread waits for its next line, the other is at work
        live.until(lambda: wants_cpu([GONE, puppet.pid]), "a thread to be at work")
        puppet.process.send_signal(signal.SIGSTOP)
        live.until(lambda: not wants_cpu([puppet.pid]), "it to stop")
        puppet.process.kill()
        puppet.wait()
        assert not wants_cpu([puppet.pid])


def test_no_more_threads_are_looked_at_than_asked_for() -> None:
    with live.cgroup("procfs") as cgroup, live.Puppet(cgroup) as busy, live.Puppet(cgroup) as idle:
        busy.tell("while True: pass")
        live.until(lambda: wants_cpu([busy.pid]) and not wants_cpu([idle.pid]), "one to be at work, the other not")
        assert wants_cpu([idle.pid, busy.pid])
        assert wants_cpu([idle.pid, busy.pid], most=2)
        assert not wants_cpu([idle.pid, busy.pid], most=1)

"""The poller on the live kernel: races won, kills reported, and how the daemon comes to it."""

import os
import resource
import signal
import sys
from pathlib import Path

import pytest

from monitor.errors import EXIT_HOOK
from monitor.kernel import charging, loader
from monitor.kernel.charging import BPF_RUNGS, POLL
from monitor.lab.daemon import LabDaemon, Record
from monitor.lab.node import MIB, LabNode, LabPod
from tests import live
from tests.commands import without
from tests.daemon.hot_node import evicted, up_to

pytestmark = pytest.mark.kernel
HARD = ("--eviction-hard", "memory.available<32Mi")

#: `outrace run` as on a machine that is so slow that the node is far from its threshold at first. The command follows.
AT_256_MIB_A_SECOND = """
import dataclasses, sys
from monitor.cli import main, run
start = run.start
run.start = lambda config, locks: start(dataclasses.replace(config, max_fill_rate=256 << 20), locks)
sys.exit(main.main(sys.argv[sys.argv.index("run"):]))
"""

node = live.fixture(LabNode, "test-ladder", 160 * MIB)


@pytest.fixture
def bpf_rung() -> None:
    if not any(offer.ok for offer in charging.offered()):
        pytest.skip("no BPF rung on this kernel")


def soft(node: LabNode, tmp_path: Path, hooks: str, *options: str, **rest: object) -> LabDaemon:
    return LabDaemon(node, "--hooks", hooks, *HARD, *options, state_dir=tmp_path / "state", **rest)


def wins(node: LabNode, pod: LabPod, daemon: LabDaemon) -> Record:
    """A process of the pod takes the node over its threshold and does not fill it: the decision that evicts it."""
    live.killed_hog(node, pod, up_to(node, 150))
    return evicted(daemon, pod)[0]


def incident(daemon: LabDaemon, since: int = 0) -> Record:
    return live.message(daemon, "incident", since, final=True)


def test_a_race_is_won_at_a_generous_margin(node: LabNode, tmp_path: Path) -> None:
    pod, small = node.add_pod("hog"), node.add_pod("small")
    with soft(node, tmp_path, POLL, "--enforce") as daemon:
        assert live.rung(daemon) == POLL
        assert daemon.metrics()["outrace_unseen_bytes_bound"] > 0
        # The next victim has 1000 everywhere, and this looks for a process that has not: another pod is next.
        node.fill(node.add_pod("next"), 30)
        node.fill(small, 20)
        # A process that is begun in the pod is known through the process connector (as by a runtime, which joins the
        # cgroup and then executes; it reports no process that joins later). The daemon also reads a pod a second after
        # it found it: if that reported the first one, it is over when the second one begins. (It may have set the
        # value of the shell too, which the second one would inherit: then nothing would differ.)
        unset = "['sh', '-c', 'echo 0 >/proc/self/oom_score_adj; exec /bin/sleep 60']"
        with live.Puppet(small.containers["c0"]) as shell:
            for _ in range(2):
                shell.tell(f"print(os.posix_spawn('/bin/sh', {unset}, {{}}), flush=True)")
                begun = int(shell.answer())
                assert shell.answer() == "done"
                live.message(daemon, "oom_score_adj differs from the pod's QoS", pod="lab/small", pid=begun)
                os.kill(begun, signal.SIGKILL)
        decision = wins(node, pod, daemon)
        # Where no CPU is to be had for the look, a pass that was due anyway comes first.
        assert decision["crossed_ns"] is None or decision["crossed_ns"] <= decision["decided_ns"]
        found = incident(daemon)
        assert (found["verdict"], found["flags"]) == ("eviction_won", [])
    assert node.oom_kills() == 0
    assert not loader.instance_directory(tmp_path / "state").exists(), "nothing was pinned"


@pytest.mark.previous
def test_a_kill_at_a_pods_own_limit_is_reported_in_full(node: LabNode, tmp_path: Path) -> None:
    pod = node.add_pod("own", "Burstable", request=8 * MIB, limit=32 * MIB)
    with soft(node, tmp_path, POLL) as daemon:
        hog = live.killed_hog(node, pod, 64)
        killed = live.message(daemon, "the kernel's OOM killer killed a process", pod="lab/own")
        assert (killed["victim_pid"], killed["oom_limit"], killed["scope"]) == (hog.pid, 32 * MIB, "memcg")
        assert killed["anon_rss"] > 10 * MIB
        # 350 ms are waited for its end, which an emulated CPU may be late with.
        assert killed["missing"] in (["reclaim"], ["reclaim", "exit"] if live.emulated() else ["reclaim"])
        assert incident(daemon)["verdict"] == "own_limit"
        assert live.metric(daemon, 'oom_kills_total{scope="memcg"}') == 1


@pytest.mark.once
def test_kills_are_counted_where_the_kernels_log_cannot_be_read(node: LabNode, tmp_path: Path) -> None:
    if Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() != "1":
        pytest.skip("kernel.dmesg_restrict is 0: anybody may read the log")
    pod = node.add_pod("own", "Burstable", request=8 * MIB, limit=32 * MIB)
    with soft(node, tmp_path, "poll", wrapper=without("syslog", "sys_admin")) as daemon:
        live.message(daemon, "OOM kills are only counted: the victims are not known")
        live.killed_hog(node, pod, 64)
        killed = live.message(daemon, "the kernel's OOM killer killed a process", pod="lab/own")
        assert killed["victim_pid"] == 0
        assert {"victim", "oom"} <= set(killed["missing"])
        found = live.message(daemon, "incident")
        assert found["verdict"] == "undetermined", "whose limit it was is not known, and is not guessed"
        assert "lost_events" in found["flags"]


# -- how a rung is taken -----------------------------------------------------------------------------------------------


@pytest.mark.once
def test_the_kernels_trigger_without_a_program_is_an_error(tmp_path: Path) -> None:
    options = ("--enforce", "--pods", "services", "--trigger", "kernel", "--hooks", "poll")
    refused = live.outrace("run", *options, "--state-dir", str(tmp_path))
    live.one_line(refused, 3, "--trigger kernel needs a BPF program", "--trigger user")


def test_without_privileges_for_bpf_the_next_rung_is_taken(node: LabNode, tmp_path: Path) -> None:
    pod = node.add_pod("hog")
    lesser = without("bpf", "perfmon", "sys_admin")
    with soft(node, tmp_path, "auto", "--enforce", wrapper=lesser) as daemon:
        logged = live.message(daemon, "better hooks cannot be used here")
        assert logged["level"] == "warning"
        assert logged["hooks"] == live.rung(daemon) == POLL
        assert "memcg-tracepoint: " in logged["problem"]
        assert "may not load BPF programs" in logged["problem"]
        assert not (tmp_path / "state" / loader.LOG).exists(), "programs were compiled that no process may load"
        assert logged["remedy"]
        wins(node, pod, daemon)


@pytest.mark.usefixtures("bpf_rung")
def test_a_daemon_whose_hook_fails_ends_and_the_next_one_polls(node: LabNode, tmp_path: Path) -> None:
    """Started again by its service manager: it polls, until BPF is tried again."""
    pod, state = node.add_pod("hog"), tmp_path / "state"
    live.lend_pins(state)
    options = ("--enforce", "--trigger", "kernel")
    with soft(node, tmp_path, "auto", *options, wrapper=(sys.executable, "-c", AT_256_MIB_A_SECOND)) as daemon:
        best = live.rung(daemon)
        assert best in BPF_RUNGS
        assert live.metric(daemon, "armed") == 0
        used = {int(fd) for fd in os.listdir(f"/proc/{daemon.pid}/fd")}
        second_free = [fd for fd in range(1024) if fd not in used][1]
        hard_limit = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (second_free, hard_limit))  # one program of the two
        hog = node.fill(pod, 110)
        assert daemon.process.wait(live.TIMEOUT_S) == EXIT_HOOK
        assert "cannot attach" in daemon.complaint()
        hog.close()
        daemon.start()
        logged = live.message(daemon, "better hooks cannot be used here")
        assert logged["hooks"] == live.rung(daemon) == POLL
        assert f"{best}: {best} failed while it ran: cannot attach" in logged["problem"]
        assert "a start 10 minutes later" in logged["remedy"]
        wins(node, pod, daemon)
        daemon.stop()
        os.utime(state / charging.FAILED, (0, 0))
        daemon.start()
        assert live.rung(daemon) == best
    assert node.oom_kills() == 0


@pytest.mark.once
@pytest.mark.usefixtures("bpf_rung")
def test_every_kill_is_reported_once_whatever_the_hooks_of_the_daemon_before(
    node: LabNode, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A daemon with BPF, none, one that polls, none, one with BPF again."""
    pod, state = node.add_pod("own", "Burstable", request=8 * MIB, limit=24 * MIB), tmp_path / "state"
    text = "the kernel's OOM killer killed a process"
    live.lend_pins(state)
    request.addfinalizer(lambda: loader.unload(loader.instance_directory(state)))

    def killed() -> int:
        hog = live.killed_hog(node, pod, 48)
        hog.close()
        return hog.pid

    alone: list[int] = []
    for hooks in ("auto", POLL, "auto"):
        with LabDaemon(node, "--hooks", hooks, *HARD, state_dir=state, keep_pins=True) as daemon:
            assert (live.rung(daemon) == POLL) == (hooks == POLL)
            mine = [killed()]
            found = live.message(daemon, text, victim_pid=mine[0])
            assert (found["while_away"], found.get("missing", [])) == (False, []), "by the programs, also without BPF"
            assert found["pod"] == "lab/own"
            live.ended(daemon)
            ours = [one for one in live.messages(daemon, text) if one["victim_pid"] in {*alone, *mine}]
            assert [(one["victim_pid"], one["while_away"]) for one in ours] == [
                *((pid, True) for pid in alone[-1:]),
                (mine[0], False),
            ]
        alone += [*mine, killed()]


@pytest.mark.once
@pytest.mark.usefixtures("bpf_rung")
def test_pins_that_are_gone_stop_nothing_while_it_runs(node: LabNode, tmp_path: Path) -> None:
    pod = node.add_pod("own", "Burstable", request=8 * MIB, limit=32 * MIB)
    live.lend_pins(tmp_path / "state")
    with soft(node, tmp_path, "auto") as daemon:
        assert loader.unload(loader.instance_directory(tmp_path / "state")) > 0
        live.killed_hog(node, pod, 64)
        live.message(daemon, "the kernel's OOM killer killed a process", pod="lab/own")
        assert live.rung(daemon) in BPF_RUNGS

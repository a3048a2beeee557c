"""A machine that is locked down while outrace runs, for real: only in a guest that may be lost (`make test-vm`).

Lockdown cannot be taken back, so these are the last tests of their guest, in this order.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.kernel import loader
from monitor.kernel.charging import BPF_RUNGS, POLL
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from tests import live

pytestmark = [pytest.mark.kernel, pytest.mark.expendable]
LOCKDOWN = Path("/sys/kernel/security/lockdown")

node = live.fixture(LabNode, "test-lockdown", 160 * MIB)


def wins(node: LabNode, daemon: LabDaemon, name: str) -> None:
    pod = node.add_pod(name)
    live.message(daemon, "pod found", pod=f"lab/{name}")
    live.killed_hog(node, pod, 400, rate=50)
    live.message(daemon, "evicted", pod=f"lab/{name}")
    assert node.oom_kills() == 0


def daemon_of(node: LabNode, state_dir: Path) -> LabDaemon:
    options = ("--enforce", "--eviction-hard", "memory.available<32Mi")
    return LabDaemon(node, *options, state_dir=state_dir, keep_pins=True)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state dir whose programs were loaded before the lockdown."""
    assert LOCKDOWN.exists(), "these run in our guests alone, whose kernels have it: is securityfs mounted?"
    state = tmp_path_factory.mktemp("loaded") / "state"
    live.lend_pins(state)
    yield state
    loader.unload(loader.instance_directory(state))


def test_what_runs_goes_on_under_lockdown(node: LabNode, loaded: Path, expected_rungs: tuple[str, ...]) -> None:
    with daemon_of(node, loaded) as daemon:
        rung = live.rung(daemon)
        assert rung in (expected_rungs[:1] or BPF_RUNGS)
        wins(node, daemon, "before")
        LOCKDOWN.write_text("confidentiality")
        wins(node, daemon, "after")
        assert live.rung(daemon) == rung


def test_what_is_loaded_is_used_by_the_next_daemon(node: LabNode, loaded: Path) -> None:
    """The kernel checks lockdown when programs are loaded, not when they are attached (kprobes: then as well)."""
    assert "[confidentiality]" in LOCKDOWN.read_text(), "the test before did not come so far"
    shown = live.outrace("doctor", "--state-dir", str(loaded))
    with daemon_of(node, loaded) as daemon:
        rung = live.rung(daemon)
        assert rung in BPF_RUNGS
        wins(node, daemon, "restarted")
    assert f"hook plan: {rung}" in shown.stdout


def test_begun_under_lockdown_it_is_a_rung_without_bpf(node: LabNode, tmp_path: Path, loaded: Path) -> None:
    assert loaded
    assert "[confidentiality]" in LOCKDOWN.read_text(), "the first test did not come so far"
    with daemon_of(node, tmp_path / "state") as daemon:
        logged = live.message(daemon, "better hooks cannot be used here")
        assert live.rung(daemon) == POLL
        assert "lockdown" in f"{logged['problem']} {logged['remedy']}"
        wins(node, daemon, "later")
    shown = live.outrace("doctor")
    assert "[confidentiality]" in shown.stdout
    assert f"hook plan: {logged['hooks']}" in shown.stdout

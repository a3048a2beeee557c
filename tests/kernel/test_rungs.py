"""The hook ladder as data: which rungs a machine offers, why not the others, and what each can promise."""

from pathlib import Path

import pytest

from monitor.cli import doctor
from monitor.errors import CannotError
from monitor.kernel import bounds, cgroupfs, charging
from monitor.kernel.charging import BPF_RUNGS, NAMES, Offer
from monitor.kernel.wire import PAGE

GIB = 1 << 30
RATE = 12 * GIB


def test_without_memory_cgroups_there_is_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect() -> None:
        raise CannotError("no memory controller")

    offers = tuple(Offer(name, True, "there") for name in BPF_RUNGS)
    monkeypatch.setattr(charging, "bpf_offers", lambda *_, **__: offers)
    monkeypatch.setattr(cgroupfs, "detect", detect)
    found = doctor.hook_plan([], Path())["rungs"]
    assert [(rung["name"], rung["ok"], bool(rung["remedy"])) for rung in found] == [(n, False, True) for n in NAMES]


def test_what_is_promised() -> None:
    two, wait = (RATE, 2, 0), bounds.SHARE * bounds.TURN_NS
    batches, lag = 2 * 64 * PAGE, 2 * 2 * 125 * PAGE  # the machine's counters lag by 125 pages, and two are summed
    assert bounds.compared(*two, machine=False, charges_only=False) == (batches, 0)
    assert bounds.compared(RATE, 2, 2 << 20, machine=False, charges_only=False) == (4 << 20, 0)
    assert bounds.compared(*two, machine=True, charges_only=False) == (batches + lag, 0)
    assert bounds.compared(*two, machine=False, charges_only=True) == (batches, 10**9)
    read = 12 * GIB * wait // 10**9
    assert bounds.compared(*two, machine=True, charges_only=True) == (batches + lag + read, 10**9)
    for machine in (True, False):
        assert bounds.looked(RATE, 2, wait, machine=machine) == (read + batches + lag * machine, wait)


def test_the_wait_lasts_as_long_as_the_headroom_within_its_bounds() -> None:
    rate = GIB
    assert bounds.wait_ns(100 << 20, rate, 0) == pytest.approx(97_656_250)
    assert bounds.wait_ns(1 << 50, rate, 0) == bounds.COARSEST_NS
    assert bounds.wait_ns(-5, rate, 0) == bounds.FINEST_NS
    assert bounds.wait_ns(0, rate, 200_000) == 200_000 * bounds.SHARE, "a dear look is made less often"
    # What it promises is what can happen: after the wait no more was taken than the headroom, unless at the floor.
    for headroom in (1 << 20, 10 << 20, 50 << 20):
        wait = bounds.wait_ns(headroom, rate, 0)
        assert rate * wait // 10**9 <= max(headroom, rate * bounds.FINEST_NS // 10**9)


def test_what_hooks_on_charges_do_not_see_is_read_again_as_a_look_costs() -> None:
    """By how much is ahead: tests/daemon/test_watch.py."""
    assert bounds.reread_ns(None, RATE, bounds.TURN_NS) == bounds.REREAD_NS, "nothing is left to be missed"
    assert bounds.reread_ns(1, RATE, 3 * bounds.TURN_NS) == 3 * bounds.SHARE * bounds.TURN_NS
    assert bounds.reread_ns(1, RATE, 10**9) == bounds.REREAD_NS, "however dear a look is here"

"""Which BPF rungs there are for a state dir, for `outrace run` and `outrace doctor` alike."""

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from monitor.cli import doctor, hooks
from monitor.errors import CannotError
from monitor.kernel import charging, loader, mounts, offsets, pins
from monitor.kernel.btf import Btf
from monitor.kernel.charging import Offer
from monitor.settings.config import RunConfig

HOOKS = tuple(pins.HOOKS)
LOCKDOWN = ("lockdown: none integrity [confidentiality]", "boot with lockdown=integrity")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One that has everything, and nothing else of this machine but its memory cgroups."""
    offers = [Offer(name, True, charging.EVENTS[name]) for name in HOOKS]
    monkeypatch.setattr(charging, "offered", lambda: offers)
    monkeypatch.setattr(charging, "obstacle", lambda: ("", ""))
    monkeypatch.setattr(mounts, "ensure", lambda: None)
    return monkeypatch


def planned(state: Path, *found: doctor.Check) -> dict[str, SimpleNamespace]:
    """What `outrace doctor` shows."""
    return {rung["name"]: SimpleNamespace(**rung) for rung in doctor.hook_plan(list(found), state)["rungs"]}


def taken(state: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The rung that `outrace run` takes, where any loads that is tried."""
    monkeypatch.setattr(hooks, "_load", lambda config, rung: (replace(config, rung=rung), True))
    return hooks.take(RunConfig(state_dir=str(state)))[0].rung


def test_after_a_hook_failed_while_it_ran_the_poller_is_taken_for_a_while(
    kernel: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pinned or not, by the doctor's plan and by a start alike."""
    assert doctor.hook_plan([], tmp_path)["rung"] == taken(tmp_path, kernel) == "memcg-tracepoint"
    charging.remember_failed(tmp_path, "memcg-tracepoint failed while it ran: cannot attach")
    kernel.setattr(loader, "pinned", lambda _: {"memcg-tracepoint": tmp_path})
    assert doctor.hook_plan([], tmp_path)["rung"] == taken(tmp_path, kernel) == charging.POLL
    for found in (planned(tmp_path)[name] for name in HOOKS):
        assert found.detail == "memcg-tracepoint failed while it ran: cannot attach"
        assert f"a start 10 minutes later, or `outrace run --hooks {found.name}`" in found.remedy
    assert next(charging.bpf_offers(tmp_path, wanted="memcg-tracepoint")).ok, "asked for by name it is tried"
    assert doctor.hook_plan([], tmp_path / "another")["rung"] == "memcg-tracepoint"
    for seconds in (charging.FAILED_S, -60):  # a note of tomorrow: the clock was put back
        os.utime(tmp_path / charging.FAILED, (0, time.time() - seconds))
        assert doctor.hook_plan([], tmp_path)["rung"] == taken(tmp_path, kernel) == "memcg-tracepoint"


def test_a_hook_that_is_offered_and_refused_gives_way_to_the_next(kernel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(config: RunConfig, rung: str) -> tuple[RunConfig, bool]:
        if rung == "memcg-tracepoint":
            raise CannotError("the verifier said no", "details")
        return replace(config, rung=rung), True

    kernel.setattr(hooks, "_load", load)
    found = hooks.take(RunConfig(state_dir=str(tmp_path)))[0]
    assert (found.rung, found.missed[0]["why"]) == ("kprobe", "the verifier said no")


@pytest.mark.parametrize(("hook", "rung"), [("memcg-tracepoint", "memcg-tracepoint"), ("kprobe", None)])
def test_what_was_pinned_before_a_lockdown_is_used(
    kernel: pytest.MonkeyPatch, tmp_path: Path, hook: str, rung: str | None
) -> None:
    """A kprobe is not: the kernel refuses to attach it then."""
    kernel.setattr(charging, "obstacle", lambda: LOCKDOWN)
    kernel.setattr(loader, "pinned", lambda state: {hook: state} if state == tmp_path else {})
    locked = doctor.Check("lockdown", False, LOCKDOWN[0], LOCKDOWN[1], bpf=True)
    plan = doctor.hook_plan([locked], tmp_path)["rung"]
    assert plan == taken(tmp_path, kernel)
    assert plan == rung or (rung is None and plan == charging.POLL)
    for name, found in planned(tmp_path, locked).items():
        if name in HOOKS and name != rung:
            assert (found.ok, found.detail, found.remedy) == (False, *LOCKDOWN)
    assert doctor.hook_plan([locked], tmp_path / "another")["rung"] == charging.POLL
    # Nothing that is pinned helps a user that may not use it.
    bare = doctor.Check("CAP_BPF", False, "missing", "add CAP_BPF", bpf=True)
    assert doctor.hook_plan([locked, bare], tmp_path)["rung"] == charging.POLL


def test_what_is_pinned_needs_nothing_to_be_compiled(kernel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = doctor.Check("bcc", False, "not installed", "apt-get install it", bpf=True)
    assert doctor.hook_plan([missing], tmp_path)["rung"] == charging.POLL
    assert planned(tmp_path, missing)["kprobe"].remedy == "apt-get install it"
    kernel.setattr(loader, "pinned", lambda _: {"kprobe": tmp_path})
    assert doctor.hook_plan([missing], tmp_path)["rung"] == "kprobe"
    assert "pinned already" in planned(tmp_path, missing)["kprobe"].detail


@pytest.mark.kernel
def test_a_kernel_before_5_8_has_no_bpf_rung_and_the_error_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = Btf.has_member
    monkeypatch.setattr(Btf, "has_member", lambda self, name, path: name != "bpf_ringbuf" and whole(self, name, path))
    for offer in charging.offered():
        assert (offer.ok, offer.why) == (False, "this kernel has no BPF ring buffers")
        assert offer.remedy == "run Linux 5.8 or newer"
    plan = doctor.hook_plan([], tmp_path)["rung"]
    assert plan == taken(tmp_path, monkeypatch)
    assert plan == charging.POLL


@pytest.mark.parametrize(
    ("kernel_has", "defined"), [("ancestors", "OFF_CGROUP_ANCESTORS"), ("ancestor_ids", "OFF_CGROUP_ANCESTOR_IDS")]
)
def test_the_array_of_ancestors_is_of_pointers_or_before_6_1_of_ids(
    monkeypatch: pytest.MonkeyPatch, kernel_has: str, defined: str
) -> None:
    whole = Btf.has_member, Btf.offset

    def has(self: Btf, struct: str, path: str) -> bool:
        return path == kernel_has if path == "ancestors" else whole[0](self, struct, path)

    def offset(self: Btf, struct: str, path: str) -> int:
        return 8 * 41 if path == kernel_has else whole[1](self, struct, path)

    monkeypatch.setattr(Btf, "has_member", has)
    monkeypatch.setattr(Btf, "offset", offset)
    found = {name: n for name, n in offsets.defines(Btf(), 1, 2).items() if "ANCESTOR" in name}
    assert found == {defined: 8 * 41}


@pytest.mark.kernel
def test_an_offset_that_is_missing_is_a_no_of_the_doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(offsets._OFFSETS, "OFF_CGROUP_KN", ("cgroup", "no_such_member"))
    (found,) = [check for check in doctor._btf() if check.name == "struct-offsets"]
    assert not found.ok
    assert "struct cgroup has no member no_such_member" in found.detail
    assert "5.8 or newer" in found.remedy
    assert doctor.hook_plan([found], tmp_path)["rung"] == charging.POLL


def test_trigger_kernel_is_refused_with_what_can_be_mended(kernel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Linux 6.12 without bcc: the rung that it does not have at all is not what to mend."""
    before = [Offer("memcg-tracepoint", False, "no tracepoint", "run Linux 6.13 or newer")]
    kernel.setattr(charging, "offered", lambda: [*before, *(Offer(n, True, n) for n in HOOKS[1:])])
    missing = CannotError("no bcc", "apt-get install python3-bpfcc")
    kernel.setattr(hooks, "_load", lambda *_: (_ for _ in ()).throw(missing))
    config = RunConfig(state_dir=str(tmp_path), enforce=True, trigger="kernel")
    with pytest.raises(CannotError) as caught:
        hooks.take(config)
    assert caught.value.message == "--trigger kernel needs a BPF program: kprobe: no bcc"
    assert caught.value.remedy == "apt-get install python3-bpfcc"
    # Where nothing was there to be tried, all of them are listed.
    kernel.setattr(charging, "offered", lambda: [Offer(n, False, f"no {n}", f"get {n}") for n in HOOKS])
    with pytest.raises(CannotError) as caught:
        hooks.take(config)
    assert "memcg-tracepoint: no memcg-tracepoint; kprobe: no kprobe" in caught.value.message
    assert caught.value.remedy == "get memcg-tracepoint; or get kprobe"

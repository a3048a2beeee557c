"""The hook ladder as data: which rungs a machine offers, why not the others, and what each can promise."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import live

from monitor.errors import CannotError
from monitor.kernel import pace
from monitor.kernel.rungs import AUTO, BPF_RUNGS, NAMES, SOFT_RUNGS, Facts, Offer, choose, facts, rungs

GIB = 1 << 30
BPF = tuple(Offer(name, True, "there") for name in BPF_RUNGS)
NO_BPF = tuple(Offer(name, False, "bpf(2) is refused", "give it CAP_BPF") for name in BPF_RUNGS)
V1 = Facts(bpf=BPF, cgroup_version=1, cpus=2, fill_rate=12 * GIB)
V2 = dataclasses.replace(V1, cgroup_version=2, no_event_control="usage thresholds are of cgroup v1")


def offered(seen: Facts) -> list[str]:
    return [rung.name for rung in rungs(seen) if rung.ok]


@pytest.mark.parametrize(
    ("seen", "names"),
    [
        (V1, [*BPF_RUNGS, "eventfd", "poll"]),
        (V2, [*BPF_RUNGS, "psi", "poll"]),
        (dataclasses.replace(V1, bpf=NO_BPF), ["eventfd", "poll"]),
        (dataclasses.replace(V2, bpf=NO_BPF), ["psi", "poll"]),
        (dataclasses.replace(V2, bpf=NO_BPF, no_psi="no /proc/pressure"), ["poll"]),
        (dataclasses.replace(V1, bpf=NO_BPF, no_event_control="not writable"), ["poll"]),
        (dataclasses.replace(V2, cgroup_version=0, no_cgroups="no memory controller"), []),
    ],
)
def test_what_is_offered_and_best_first(seen: Facts, names: list[str]) -> None:
    assert offered(seen) == names
    assert tuple(rung.name for rung in rungs(seen)) == NAMES, "all are told of, best first"
    for rung in rungs(seen):
        assert rung.detail
        assert bool(rung.remedy) != rung.ok, f"{rung.name}: a remedy for what is not there, and only for that"


def test_the_best_is_taken_or_the_one_asked_for() -> None:
    assert choose(rungs(V1)).name == "memcg-tracepoint"
    assert choose(rungs(V1), AUTO, SOFT_RUNGS).name == "eventfd"
    assert choose(rungs(V2), AUTO, SOFT_RUNGS).name == "psi"
    assert choose(rungs(V2), "poll").name == "poll"


def test_one_that_is_not_offered_is_refused_with_the_remedy() -> None:
    with pytest.raises(CannotError, match=r"--hooks psi: memory\.events") as caught:
        choose(rungs(V1), "psi")
    assert caught.value.exit_code == 3
    assert caught.value.remedy
    with pytest.raises(CannotError, match="no memory controller"):
        choose(rungs(dataclasses.replace(V1, no_cgroups="no memory controller")))


def test_a_lower_rung_never_promises_more() -> None:
    for seen in (V1, V2, dataclasses.replace(V1, huge_page=2 << 20), dataclasses.replace(V1, cpus=64)):
        found = {rung.name: rung for rung in rungs(seen)}
        for better, worse in (("memcg-tracepoint", "eventfd"), ("memcg-tracepoint", "psi"), ("psi", "poll")):
            assert found[better].unseen_bytes <= found[worse].unseen_bytes
            assert found[better].unseen_ms <= found[worse].unseen_ms
        assert found["poll"].unseen_ms > 0


def test_the_wait_lasts_as_long_as_the_headroom_within_its_bounds() -> None:
    rate = GIB
    assert pace.wait_ns(100 << 20, rate, 0) == pytest.approx(97_656_250)
    assert pace.wait_ns(1 << 50, rate, 0) == pace.COARSEST_NS
    assert pace.wait_ns(-5, rate, 0) == pace.FINEST_NS
    assert pace.wait_ns(0, rate, 200_000) == 200_000 * pace.SHARE, "a dear look is made less often"
    # What it promises is what can happen: after the wait no more was taken than the headroom, unless at the floor.
    for headroom in (1 << 20, 10 << 20, 50 << 20):
        wait = pace.wait_ns(headroom, rate, 0)
        assert rate * wait // 10**9 <= max(headroom, rate * pace.FINEST_NS // 10**9)


def test_this_machine_offers_polling_at_least() -> None:
    found = facts(GIB)
    print(found)
    if found.no_cgroups:
        pytest.skip(f"no memory cgroups here: {found.no_cgroups}")
    assert "poll" in offered(found)
    assert ("eventfd" in offered(found)) <= (found.cgroup_version == 1)


@pytest.mark.kernel
def test_the_plan_is_the_same_before_tracefs_is_mounted(expected_rungs: tuple[str, ...]) -> None:
    """`outrace run` mounts it; asked before its first start, BTF has to do."""
    live.pin_dir()  # mounts it here
    without = live.elsewhere("umount -l /sys/kernel/tracing")
    plan = json.loads(live.outrace("doctor", "-o", "json", wrapper=without).stdout)["hook_plan"]
    # Why one is not there may be told in other words.
    here = rungs(facts(GIB))
    assert [(rung["name"], rung["ok"]) for rung in plan["rungs"]] == [(rung.name, rung.ok) for rung in here]
    assert plan["rung"] == choose(here).name
    assert plan["rung"] in (expected_rungs[:1] or BPF_RUNGS)

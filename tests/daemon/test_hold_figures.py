"""Growth under brakes: a pod with a cap may still charge up to the cap, and that is no growth that has to be stopped.

Stand-ins for brakes: the test sets what they hold. On the kernel: `outrace bench race --mode hold --load populate`.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from monitor.hold.figures import LEAST_NS, HoldFigures
from monitor.policy.hold import FREE, Domain, Pod, Rules, State

MIB = 1 << 20
RULES = Rules(120_000_000_000, True)
ONE_POD = SimpleNamespace(by_uid={"a": SimpleNamespace(index="a")})
HELD: State = FREE._replace(left={"memory.available": 8 * MIB}, met_ns=1)


def figures(usages: dict[str, int], gauge: Any = None, registry: Any = None, *, runs: bool = False) -> HoldFigures:
    brakes: Any = SimpleNamespace(
        get=lambda uid: SimpleNamespace(usage=lambda: usages[uid]) if uid in usages else None,
        running=[SimpleNamespace(uid=uid, is_capped=True) for uid in usages] if runs else [],
    )
    nothing: Any = None
    return HoldFigures(gauge, registry, RULES, nothing, brakes, nothing)


def rate(held: HoldFigures, left: int, now_ns: int = 0, cap: int = 0) -> int:
    """Bytes a second by which the domain's ``left`` MiB have fallen since the call before; ``cap``: of the pod, MiB."""
    domain = Domain(left * MIB, 8 * MIB, 8 * MIB)
    seen = held.with_rates({"memory.available": domain}, now_ns, {"a": cap * MIB} if cap else {}, HELD)
    return seen["memory.available"].rate


@pytest.mark.parametrize(
    ("cap", "grew", "fell", "cap_now", "counted"),
    [
        (104, 3, 3, 104, 0),  # 4 MiB are left then, and the kill threshold is at 2
        (107, 3, 3, 107, 3),  # 1 MiB would be left
        (0, 3, 3, 0, 3),  # frozen only
        (101, 0, 2, 101, 2),  # of others beside a capped pod
        (104, 0, 0, 0, 0),  # the brake is released
    ],
)
def test_growth_up_to_a_cap_is_none_unless_it_reaches_the_second_line(
    cap: int, grew: int, fell: int, cap_now: int, counted: int
) -> None:
    """MiB. A pod that has 100 with a cap, of a domain in which 8 are left, which then fall."""
    usages = {"a": 100 * MIB}
    held = figures(usages)
    assert rate(held, 8, cap=cap) == 0
    usages["a"] += grew * MIB
    if cap_now != cap:
        held.braked()
    assert rate(held, 8 - fell, LEAST_NS, cap_now) == counted * MIB * 1_000_000_000 // LEAST_NS


def test_who_is_known_only_since_the_crossing_did_not_grow_by_what_it_had() -> None:
    """Its manifest came late, or it was not counted before: 60 MiB that stand still are no growth."""
    usages = {"a": 100 * MIB}
    entries = {"late": SimpleNamespace(began=60 * MIB), "new": SimpleNamespace(began=0)}
    order = [SimpleNamespace(uid=uid, critical=False) for uid in ("late", "new")]
    registry = SimpleNamespace(usages=lambda: (dict(usages), 0), by_uid=entries, order=lambda: order)
    held = figures(usages, SimpleNamespace(reread=lambda: None), registry)
    short = {"memory.available": Domain(4 * MIB, 8 * MIB, 8 * MIB)}
    state = HELD._replace(pods=(Pod("a", "grows", 0, 100 * MIB, 104 * MIB),))
    assert held.who_grows_on(short, state) == []
    usages |= {"late": 60 * MIB, "new": 8 * MIB}
    assert held.who_grows_on(short, state) == ["new"]


def test_what_a_pod_took_as_the_domains_were_read_is_no_growth() -> None:
    """Its counters are read again after them: else what is available has fallen by 1 MiB that it does not have yet."""
    usages, counted, now = {"a": 100 * MIB}, {"a": 100 * MIB}, {"a": 100 * MIB}
    gauge = SimpleNamespace(reread=lambda: counted.update(now), table=SimpleNamespace(working_set=counted.get))
    held = figures(usages, gauge, ONE_POD, runs=True)
    rate(held, 8, cap=107)
    counted["a"], now["a"] = 102 * MIB, 103 * MIB
    assert rate(held, 5, LEAST_NS, cap=107) == 0


def test_page_cache_that_becomes_memory_below_a_cap_is_no_growth() -> None:
    """The kernel reclaims the cache of a pod at the cap of its run: its usage stays, and its working set grows."""
    sets = {"a": 50 * MIB}
    gauge = SimpleNamespace(reread=lambda: None, table=SimpleNamespace(working_set=sets.get))
    held = figures({"a": 100 * MIB}, gauge, ONE_POD, runs=True)
    rate(held, 18, cap=104)
    sets["a"] += 3 * MIB
    assert rate(held, 15, LEAST_NS, cap=104) == 0

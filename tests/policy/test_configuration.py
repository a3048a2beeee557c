"""Which settings are in force and where each came from: defaults, file, drop-ins, options of outrace, copies."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.configuration import HARD, Given, Source, in_force
from monitor.policy.layout import SINGLE_DISK, DiskLayout, overlay_containerfs
from monitor.policy.releases import ERAS, era
from monitor.policy.signals import KUBELET_SIGNALS
from monitor.policy.thresholds import DEFAULT_HARD, LESS_THAN
from tests.policy.builders import IMAGEFS, SPLIT

#: Told of a container file system without one for images, the kubelet adds no copies: only what was written is seen.
NO_OVERLAY = DiskLayout(False, True)


def shown(
    file: Source | None = None,
    *drop_ins: Source,
    own: Mapping[str, dict[str, str]] | None = None,
    layout: DiskLayout = NO_OVERLAY,
) -> list[str]:
    given_maps = {key: Given(value, f"--{key}") for key, value in (own or {}).items()}
    settings = in_force(file, drop_ins, {"enforceNodeAllocatable": Given([], "--x"), **given_maps})
    return [f"{e.threshold}: {e.origin}" for e in settings.thresholds(layout=layout)]


def config(name: str = "file", **content: Any) -> Source:
    return Source(name, content)


DEFAULTS = [
    "memory.available<100Mi: default",
    "nodefs.available<10%: default",
    "nodefs.inodesFree<5%: default",
    "imagefs.available<15%: default",
    "imagefs.inodesFree<5%: default",
]


def test_all_or_none_of_the_defaults() -> None:
    assert shown(config()) == shown(config(evictionHard=None)) == shown() == DEFAULTS
    assert shown(config(evictionHard={})) == []
    assert shown(config(evictionHard={"memory.available": "1Gi"})) == ["memory.available<1Gi: file: evictionHard"]
    soft = {"evictionSoft": {"memory.available": "2Gi"}, "evictionSoftGracePeriod": {"memory.available": "1m"}}
    assert shown(own=soft) == [DEFAULTS[0], "memory.available<2Gi for 60s: --evictionSoft", *DEFAULTS[1:]]


def test_merged_defaults() -> None:
    merged = shown(
        config(evictionHard={"memory.available": "1Gi", "imagefs.available": "0%"}, mergeDefaultEvictionSettings=True)
    )
    assert merged == ["memory.available<1Gi: file: evictionHard", DEFAULTS[1], DEFAULTS[2], DEFAULTS[4]]


def test_drop_ins_come_after_the_defaults() -> None:
    drop_in = config("10.conf", evictionHard={"memory.available": "1Gi", "nodefs.available": None})
    assert shown(config(), drop_in) == ["memory.available<1Gi: 10.conf: evictionHard", *DEFAULTS[2:]]
    assert shown(None, drop_in) == shown(config(), drop_in)
    assert shown(config(), config("20.conf", evictionHard=None)) == []
    named = config(evictionHard={"pid.available": "5%"})
    later = config("20.conf", evictionHard={"pid.available": "6%"})
    assert shown(named, drop_in, later) == [
        "memory.available<1Gi: 10.conf: evictionHard",
        "pid.available<6%: 20.conf: evictionHard",
    ]


def test_defaults_switched_off_by_naming_others() -> None:
    def off(*sources: Source, own: dict[str, str] | None = None) -> dict[str, str]:
        file, *drop_ins = sources or (None,)
        flags = {} if own is None else {HARD: Given(own, "--flag")}
        return dict(in_force(file, drop_ins, flags).switched_off)

    assert off() == off(config()) == {}
    one = config(evictionHard={"memory.available": "1Gi", "imagefs.available": "0%"})
    assert off(one) == dict.fromkeys(
        ("nodefs.available", "nodefs.inodesFree", "imagefs.inodesFree"), "file: evictionHard"
    )
    assert "nodefs.available" not in off(one, config("d", evictionHard={"nodefs.available": "1%"}))
    assert off(config("f", **one.content, mergeDefaultEvictionSettings=True)) == {}
    assert off(config(), config("d", evictionHard=dict.fromkeys(DEFAULT_HARD))) == {}  # taken away on purpose
    assert off(one, own=dict(DEFAULT_HARD)) == {}
    assert set(off(own={"pid.available": "1%"})) == set(DEFAULT_HARD)


def test_copies_name_what_they_are_copies_of() -> None:
    both = config(evictionHard={"memory.available": "1Gi", "imagefs.available": "15%"})
    found = in_force(both).thresholds(layout=IMAGEFS)
    assert [f"{e.threshold}: {e.origin}" for e in found] == [
        "memory.available<1Gi: file: evictionHard",
        "allocatableMemory.available<1Gi: copy of memory.available (file: evictionHard)",
        "imagefs.available<15%: file: evictionHard",
        "containerfs.available<15%: overlay: copy of imagefs.available (file: evictionHard)",
    ]
    assert [(e.copy, e.overlay) for e in found] == [(False, False), (True, False), (False, False), (False, True)]
    assert len(in_force(both).thresholds(layout=SPLIT)) == 3
    own = config(evictionHard={"containerfs.available": "1%", "nodefs.available": "10%"})
    assert shown(own, layout=SINGLE_DISK) == [
        "nodefs.available<10%: file: evictionHard",
        "containerfs.available<10%: overlay: copy of nodefs.available (file: evictionHard)",
    ]
    assert in_force(both).thresholds(era("kubelet-1.17"), IMAGEFS)[-1].threshold.signal == "imagefs.available"


def test_other_values() -> None:
    settings = in_force(config(evictionMaxPodGracePeriod=60, enforceNodeAllocatable=["none"], maxPods=5))
    assert settings.values["evictionMaxPodGracePeriod"] == Given(60, "file: evictionMaxPodGracePeriod")
    assert settings.enforced() == ("none",)
    later = config("d", evictionPressureTransitionPeriod="1m", evictionMaxPodGracePeriod=None)
    settings = in_force(config(evictionMaxPodGracePeriod=60), [later])
    assert settings.values == {"evictionPressureTransitionPeriod": Given("1m", "d: evictionPressureTransitionPeriod")}
    own = {"evictionPressureTransitionPeriod": Given(1, "--flag")}
    assert in_force(config(), [later], own).values == own
    assert in_force().enforced() == ("pods",)
    first, second = config(systemReserved={"memory": "1Gi", "cpu": "1"}), config("d", systemReserved={"memory": "2Gi"})
    assert in_force(first, [second]).maps["systemReserved"] == {
        "memory": Given("2Gi", "d: systemReserved"),
        "cpu": Given("1", "file: systemReserved"),
    }


values = st.sampled_from(["100Mi", "1Gi", "5%", "0%", "100%", "7.5%"])
signals = st.sampled_from(KUBELET_SIGNALS)
hard_maps = st.dictionaries(signals, values)


@given(
    hard_maps, hard_maps, hard_maps, st.sampled_from([SINGLE_DISK, IMAGEFS, SPLIT, NO_OVERLAY]), st.sampled_from(ERAS)
)
def test_thresholds_are_those_the_policy_parses(
    hard: dict[str, str], soft: dict[str, str], reclaim: dict[str, str], layout: DiskLayout, name: str
) -> None:
    """Taken apart entry by entry for their origins they are the same, in the same order, as parsed as a whole."""
    rules = era(name)
    hard, soft, reclaim = ({s: text for s, text in m.items() if s in rules.signals} for m in (hard, soft, reclaim))
    reclaim = {signal: text for signal, text in reclaim.items() if text != "0%"}
    grace = {signal: "0s" if i % 2 else "30s" for i, signal in enumerate(soft)}
    soft_maps = {"evictionSoft": soft, "evictionSoftGracePeriod": grace}
    file = config(evictionHard=hard, evictionMinimumReclaim=reclaim, **soft_maps)
    whole = rules.parse_thresholds(hard, soft, grace, reclaim, ("pods",))
    if rules.containerfs:
        whole = tuple(t for t in overlay_containerfs(whole, layout) if t.operator == LESS_THAN)
    assert tuple(e.threshold for e in in_force(file).thresholds(rules, layout)) == whole

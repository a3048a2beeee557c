"""Old kubelet flags to a KubeletConfiguration."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.errors import PolicyError
from monitor.policy.translate import BOOLEAN_FLAGS, FIELDS, WITHOUT, translate

HEAD = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}


def fields(*arguments: str) -> dict[str, Any]:
    made = translate(arguments).configuration
    assert {key: made.pop(key) for key in HEAD} == HEAD
    return made


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--eviction-hard=memory.available<1Gi,nodefs.available<10%",),
         {"evictionHard": {"memory.available": "1Gi", "nodefs.available": "10%"}}),
        (("--eviction-hard", "memory.available<1Gi"), {"evictionHard": {"memory.available": "1Gi"}}),
        (("--eviction_hard=",), {"evictionHard": {}}),
        (("--eviction-hard=memory.available<1Gi", "--eviction-hard=pid.available<1%"),
         {"evictionHard": {"memory.available": "1Gi", "pid.available": "1%"}}),
        (("--eviction-max-pod-grace-period=-1",), {"evictionMaxPodGracePeriod": -1}),
        (("--kernel-memcg-notification",), {"kernelMemcgNotification": True}),
        (("--kernel-memcg-notification", "--local-storage-capacity-isolation", "false"),
         {"kernelMemcgNotification": True, "localStorageCapacityIsolation": False}),
        (("--experimental-kernel-memcg-notification=F",), {"kernelMemcgNotification": False}),
        (("--system-reserved=cpu=100m,memory=1Gi",), {"systemReserved": {"cpu": "100m", "memory": "1Gi"}}),
        (("--kube-reserved-cgroup", "/kube.slice"), {"kubeReservedCgroup": "/kube.slice"}),
        (("--enforce-node-allocatable=pods,kube-reserved",), {"enforceNodeAllocatable": ["pods", "kube-reserved"]}),
        (("--enforce-node-allocatable=pods", "--enforce-node-allocatable", "kube-reserved"),
         {"enforceNodeAllocatable": ["pods", "kube-reserved"]}),
        (("--minimum-image-ttl-duration=2m",), {"imageMinimumGCAge": "2m"}),
        # The flags eviction replaced: what they stand for, and the other defaults kept.
        (("--image-gc-high-threshold=90", "--image-gc-low-threshold=75"),
         {"evictionHard": {"imagefs.available": "10%"}, "mergeDefaultEvictionSettings": True,
          "evictionMinimumReclaim": {"imagefs.available": "15%"},
          "imageGCHighThresholdPercent": 90, "imageGCLowThresholdPercent": 75}),
        (("--image-gc-low-threshold=75",),  # from the default of 85
         {"evictionMinimumReclaim": {"imagefs.available": "10%"}, "imageGCLowThresholdPercent": 75}),
        (("--image-gc-high-threshold=100",), {"imageGCHighThresholdPercent": 100}),
        (("--image-gc-high-threshold=85", "--eviction-hard=imagefs.available<1Gi"),
         {"evictionHard": {"imagefs.available": "1Gi"}, "imageGCHighThresholdPercent": 85}),
        (("--low-diskspace-threshold-mb=256",),
         {"evictionHard": {"nodefs.available": "256Mi"}, "mergeDefaultEvictionSettings": True}),
        (("--low-diskspace-threshold-mb=0",), {}),
        (("--outofdisk-transition-frequency=2m",), {"evictionPressureTransitionPeriod": "2m"}),
        (("--outofdisk-transition-frequency=2m", "--eviction-pressure-transition-period=3m"),
         {"evictionPressureTransitionPeriod": "3m"}),
        (("--maximum-dead-containers=5",), {}),
        (("--feature-gates=A=true, HugepageAwareEviction=false",), {"featureGates": {"HugepageAwareEviction": False}}),
        (("--feature-gates=DevicePlugins=true,$MORE",), {}),
    ],
)  # fmt: skip
def test_fields(arguments: tuple[str, ...], expected: dict[str, Any]) -> None:
    assert fields(*arguments) == expected


@pytest.mark.parametrize("flag", WITHOUT)
def test_flags_without_a_field_have_a_reason(flag: str) -> None:
    made = translate([f"--{flag}=1"])
    assert made.configuration == HEAD
    (note,) = made.notes
    assert note.startswith(f"--{flag} has ")


def test_notes() -> None:
    notes = translate(["--image-gc-high-threshold=85", "--eviction-hard=imagefs.available<1Gi"]).notes
    assert notes == [
        "--image-gc-high-threshold is evictionHard imagefs.available: 15% today; 1Gi is given already and stays"
    ]
    notes = translate(["--low-diskspace-threshold-mb=256"]).notes
    assert [note.partition(" is ")[0] for note in notes][:1] == ["--low-diskspace-threshold-mb"]
    assert notes[1].startswith("mergeDefaultEvictionSettings: true keeps the other default")
    (note,) = translate(["--outofdisk-transition-frequency=1m"]).notes
    assert note == "--outofdisk-transition-frequency is evictionPressureTransitionPeriod today"
    assert translate(["--eviction-hard=memory.available<1Gi"]).notes == []


def test_flags_of_other_things_are_noted() -> None:
    made = translate(
        ["--v=2", "--register-node", "--node-labels", "a=b", "--v=3", "--eviction-hard=memory.available<1Gi"]
    )
    assert made.configuration == HEAD | {"evictionHard": {"memory.available": "1Gi"}}
    assert made.notes == [
        "none of eviction, clean-up or reservation, and not carried over: --v, --register-node, --node-labels"
    ]


@pytest.mark.parametrize(
    "flags",
    [
        *(("-v", "2"), ("-v=2",), ("-v2",), ("--allowed-unsafe-sysctls", "net.*"), ("--fail-cgroupv1",)),
        *(("--oom-score-adj", "-999"), ("--register-node", "-v", "2"), ("--of-another",)),
    ],
)
def test_flags_of_kubelets_are_passed_over(flags: tuple[str, ...]) -> None:
    made = translate([*flags, "--eviction-hard=memory.available<1Gi"])
    assert made.configuration == HEAD | {"evictionHard": {"memory.available": "1Gi"}}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("010", 8), ("0x10", 16), ("-0b11", -3), ("+5", 5), ("9_0", 90), ("0", 0), ("08", None), (" 5", None),
        ("\u0663", None),
    ],
)  # fmt: skip
def test_numbers_are_read_as_go_reads_them(text: str, number: int | None) -> None:
    """strconv.ParseInt with base 0: a kubelet takes `010` for eight, and refuses blanks and digits of other scripts."""
    flag = f"--eviction-max-pod-grace-period={text}"
    if number is None:
        with pytest.raises(PolicyError, match="is not a whole number; write a whole number"):
            translate([flag])
    else:
        assert translate([flag]).configuration["evictionMaxPodGracePeriod"] == number


def test_origins() -> None:
    """What is wrong with a flag is reported with its place; of one that is given twice the last is kept."""
    flags = (
        "--eviction-hard=memory.available<1Gi",
        "--eviction-hard=pid.available<5%",
        "--eviction-max-pod-grace-period=x",
    )
    assert translate(flags[:2], ("a:1", "b:2")).origins == {"eviction-hard": "b:2"}
    with pytest.raises(PolicyError, match=r"^c:3: --eviction-max-pod-grace-period: 'x' is not a whole number; write a"):
        translate(flags, ("a:1", "b:2", "c:3"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--evicton-hard=x",), r"--evicton-hard: is not known here; did you mean --eviction-hard\?"),
        (("--eviction-hard", "--v=2"), "--eviction-hard: has no value; write --eviction-hard=VALUE"),
        (("eviction-hard",), "'eviction-hard' is not a flag"),
        (("--eviction-hard=memory.available",), "--eviction-hard: malformed pair"),
        (("--eviction-hard",), "--eviction-hard: has no value"),
        (("--eviction-max-pod-grace-period=1m",), "--eviction-max-pod-grace-period: '1m' is not a whole number"),
        (("--eviction-pressure-transition-period=5",), "--eviction-pressure-transition-period: time: missing unit"),
        (("--image-gc-high-threshold=101",), "--image-gc-high-threshold: 101 is not a percentage"),
        (("--image-gc-high-threshold=75",), "--image-gc-low-threshold: 80 must be less than"),
        (("--kernel-memcg-notification=maybe",), "--kernel-memcg-notification: 'maybe' is not true or false"),
        (("--low-diskspace-threshold-mb=x",), "--low-diskspace-threshold-mb: 'x' is not a whole number"),
    ],
)
def test_wrong_flags_are_named(arguments: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(PolicyError, match=complaint):
        translate(arguments)


FLAGS = st.sampled_from([*FIELDS, *WITHOUT, "low-diskspace-threshold-mb", "outofdisk-transition-frequency"])
TEXTS = st.one_of(
    st.text(max_size=20), st.sampled_from(["memory.available<1Gi", "a=1", "90", "1m", "true", "pods", ""])
)


def test_a_file_of_endless_flags_is_refused_before_it_costs_time() -> None:
    with pytest.raises(PolicyError, match="60000 flags and values, where 2000 are the most"):
        translate(["--cgroups-per-qos"] * 60_000, [f"args:{line}" for line in range(60_000)])


@given(st.lists(st.tuples(FLAGS, TEXTS), max_size=4))
def test_any_value_is_translated_or_refused(flags: list[tuple[str, str]]) -> None:
    """Written with = or apart is the same, but for booleans, which may stand alone; a refusal names a flag."""
    refusal = None
    try:
        made = translate([f"--{flag}={text}" for flag, text in flags])
    except PolicyError as error:
        refusal = str(error)
    if refusal is not None:
        assert refusal.startswith("--")
        return
    assert HEAD.items() <= made.configuration.items()
    apart = [part for flag, text in flags for part in (f"--{flag}", text)]
    if not any(flag in BOOLEAN_FLAGS or text.startswith("-") for flag, text in flags):
        assert translate(apart) == made

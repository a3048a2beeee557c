"""Flags, the own file and a kubelet's: which one wins, where each value came from, what is refused."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.errors import CannotError, ConfigError
from monitor.kernel import loader
from monitor.policy.thresholds import DEFAULT_HARD, LESS_THAN
from monitor.settings.config import RunConfig
from monitor.settings.files import read_kubelet
from monitor.settings.options import KUBELET_KEYS, OWN_KEYS, SETTINGS
from monitor.settings.read import check_kernel, read, resolve
from tests.daemon.config_files import KUBELET, build, write


def test_the_largest_threshold_and_the_longest_name() -> None:
    assert build({"listen": f"{'a' * 63}:1"}).listen_host == "a" * 63
    assert build({"eviction-hard": "memory.available<4Ei"}).thresholds()[0].quantity(1 << 30) == 1 << 62


def test_precedence_and_origin(tmp_path: Path) -> None:
    kubelet = write(
        tmp_path,
        "kubelet.yaml",
        KUBELET + "evictionHard: {memory.available: 1Gi}\nevictionMaxPodGracePeriod: 30\nmaxPods: 110\n"
        "systemReserved: {memory: 300Mi, cpu: 100m}\nkernelMemcgNotification: true\n"
        "localStorageCapacityIsolation: false\n",
    )
    text = "eviction-hard: {memory.available: 2Gi}\neviction-max-pod-grace-period: 20\n"
    own = write(tmp_path, "own.yaml", f"{text}enforce: true\nreclaim-images: rmi\n")
    flags = {"eviction-hard": "memory.available<3Gi", "enforce": False, "reclaim-images": ""}
    config = build(flags, own, kubelet)
    assert config.eviction_hard == {"memory.available": "3Gi"}
    assert (config.eviction_max_pod_grace_period_s, config.system_reserved) == (20, 300 << 20)
    assert (config.kernel_memcg_notification, config.local_storage) == (True, False)
    assert (config.enforce, config.reclaim_images) == (False, ()), "a flag can take back what a file sets"
    assert {config.origins[name] for name in ("eviction_hard", "enforce")} == {"--eviction-hard", "--enforce"}
    assert config.origins["eviction_max_pod_grace_period_s"] == f"{own}: eviction-max-pod-grace-period"
    assert config.origins["system_reserved"] == f"{kubelet}: systemReserved"
    assert config.origins["local_storage"] == f"{kubelet}: localStorageCapacityIsolation"
    assert config.origins["pods"] == "default"


def test_thresholds_follow_the_layout_of_the_disks() -> None:
    config = build({"eviction-hard": "nodefs.available<10%,imagefs.available<15%,containerfs.available<1%"})
    one, apart = (
        {t.signal: str(t.value) for t in dataclasses.replace(config, layout_image_fs=apart).thresholds()}
        for apart in (False, True)
    )
    assert (one["containerfs.available"], apart["containerfs.available"]) == ("10%", "15%")
    old = dataclasses.replace(build({}), policy="kubelet-1.17", layout_image_fs=True)
    assert not any(t.signal.startswith("containerfs") for t in old.thresholds())
    # Those without an operator, which stand where there was nothing to copy, are not shown to anybody.
    assert all(t.operator == LESS_THAN for t in build({"eviction-hard": "memory.available<1Gi"}).thresholds())


# Whatever is written as an option or into a file: a configuration, or one line that names what is wrong with it.
#: What is on the way between right and wrong: the words of the grammar, numbers without an end, several lines.
GRAMMAR = """
memory.available nodefs.inodesFree pid.available < = , % 1 -1 0 1e9 100Mi 1Ei 8Ei 5% -5% 1.5 NaN inf 1h 30s -1s 9999999h
manifests: / /tmp http:// localhost : 65536 [::1] @ pods none '
"""
_words = st.sampled_from([*GRAMMAR.split(), "9" * 30, "\n", "\0", " ", "", "\udcff"])
_texts = st.lists(_words, max_size=5).map("".join) | st.text(max_size=40)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
IS_KUBELETS = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}


def refusal(flags: Mapping[str, Any], *files: str | None) -> str:
    """Of what is refused: why. (`main` makes one line of it, whatever was written.)"""
    try:
        build(flags, *files)
    except ConfigError as error:
        return str(error)
    return ""


@given(st.dictionaries(st.sampled_from([setting.name for setting in SETTINGS]), _texts, min_size=1, max_size=3))
def test_any_options(flags: dict[str, str]) -> None:
    line = refusal(flags)
    assert line == "" or line.startswith(tuple(f"--{name}: " for name in flags))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(max_size=200)
    | st.dictionaries(st.sampled_from(OWN_KEYS) | _texts, _values, max_size=3).map(json.dumps)
    | st.dictionaries(st.sampled_from(KUBELET_KEYS) | _texts, _values, max_size=3).map(
        lambda found: json.dumps(IS_KUBELETS | found)
    )
)
def test_any_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    for line in (refusal({}, str(path)), refusal({}, None, str(path))):
        assert line == "" or line.startswith((str(path), "--alertmanager: "))


def test_json_round_trip_through_an_inherited_descriptor() -> None:
    config = dataclasses.replace(build({"reclaim-images": "crictl rmi --prune"}), lock_fd=3, layout_image_fs=True)
    fd = config.to_memfd()
    try:
        assert os.get_inheritable(fd)
        assert RunConfig.from_fd(fd) == config
        assert RunConfig.from_fd(fd) == config  # a second reader gets the same
    finally:
        os.close(fd)
    assert RunConfig.from_json(RunConfig().to_json()) == RunConfig()
    for bad in ("[]", '{"lisen_port": 1}', "{"):
        with pytest.raises(ValueError, match=r"configuration|Expecting"):
            RunConfig.from_json(bad)


@pytest.mark.parametrize(
    ("flags", "mode", "kills", "holds", "asks_api"),
    [
        ({}, "observe", False, False, False),
        ({"mode": "observe"}, "observe", False, False, False),
        ({"enforce": True}, "enforce", True, False, False),
        ({"mode": "enforce", "enforce": True}, "enforce", True, False, False),
        ({"mode": "enforce", "hard-grace": "5s"}, "enforce", True, True, False),
        ({"mode": "hold"}, "hold", True, True, False),
        ({"mode": "hold", "evict-by": "api"}, "hold", False, True, True),
    ],
)
def test_modes(flags: dict[str, Any], mode: str, kills: bool, holds: bool, asks_api: bool) -> None:
    config = build(flags)
    assert (config.mode, config.kills, config.holds, config.asks_api) == (mode, kills, holds, asks_api)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            {"eviction-soft": "memory.available<1Gi"},
            "--eviction-soft: memory.available: 1Gi: grace period must be spec",
        ),
        ({"policy": "kubelet-1.8", "eviction-hard": "pid.available<5%"}, "--eviction-hard: pid"),
        ({"mode": "hold", "enforce": True}, "--mode: hold differs from --enforce (--enforce); give one of them"),
        ({"mode": "enforce", "enforce": False}, "--mode: enforce differs from --no-enforce (--enforce)"),
        ({"hold-limit": "1m", "enforce": True}, "--hold-limit: nothing is held in mode enforce"),
        ({"mode": "hold", "trigger": "kernel"}, "--trigger: kernel kills at the crossing"),
        ({"hard-grace": "5s"}, "--hard-grace: no pod is killed at a hard threshold in mode observe"),
        ({"enforce": True, "hard-grace": "5s", "evict-by": "api"}, "--hard-grace: with --evict-by api"),
    ],
)
def test_options_that_do_not_go_together(flags: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(flags)
    assert str(caught.value).startswith(expected)


def test_a_hard_grace_needs_cgroup_v2() -> None:
    config = build({"mode": "enforce", "hard-grace": "5s"})
    check_kernel(config, 2)
    with pytest.raises(CannotError, match=r"--hard-grace: .* cgroup v1.*leave --hard-grace out, or boot with"):
        check_kernel(config, 1)
    check_kernel(build({"mode": "hold"}), 1)


# Thresholds by outrace's own signals: where they may be written, and where not.
RECLAIMABLE = {"eviction-hard": "memory.reclaimable<100Mi"}


def signals(config: RunConfig) -> list[str]:
    return [threshold.signal for threshold in config.thresholds()]


def test_own_signals_in_a_flag_and_in_outraces_own_file(tmp_path: Path) -> None:
    both = ["memory.reclaimable", "allocatableMemory.reclaimable"]
    assert signals(build(RECLAIMABLE)) == both
    assert signals(build({}, write(tmp_path, "own.yaml", "eviction-hard: {memory.reclaimable: 100Mi}\n"))) == both
    file = write(tmp_path, "kubelet.yaml", KUBELET + "evictionHard: {memory.available: 300Mi, nodefs.available: 7%}\n")
    assert signals(build(RECLAIMABLE, None, file)) == both  # it replaces the whole map, as the kubelet's own flag does
    soft = {"eviction-soft": "memory.reclaimable<5%", "eviction-soft-grace-period": "memory.reclaimable=1m"}
    shown = [(e.threshold.signal, e.origin) for e in read({**RECLAIMABLE, **soft}).settings.thresholds()]
    assert ("memory.reclaimable", "--eviction-soft") in shown
    assert ("allocatableMemory.reclaimable", "copy of memory.reclaimable (--eviction-hard)") in shown


def test_only_a_threshold_by_a_formula_has_it_compiled() -> None:
    assert build({"eviction-hard": "memory.available<100Mi,nodefs.available<1%"}).formulas == loader.KUBELETS
    assert build({"eviction-hard": "memory.reclaimable<100Mi,memory.available<1Gi"}).formulas == loader.RECLAIMABLE


UNSUPPORTED = (
    "memory.reclaimable: 100Mi: unsupported eviction signal memory.reclaimable; "
    "it is outrace's own, and a kubelet refuses it: give it to outrace by --eviction-hard"
)

# A KubeletConfiguration and its drop-ins: read as they are, refused by name, merged as the kubelet merges them.
#: Of the fields of a KubeletConfiguration of Kubernetes 1.36 that are not ours, those that are spelt most alike.
OTHER_FIELDS = """
systemReservedCgroup kubeReservedCgroup qosReserved cgroupsPerQOS shutdownGracePeriod cgroupDriver reservedMemory
systemCgroups enableServer resolvConf failCgroupV1 authentication reservedSystemCPUs
""".split()  # noqa: SIM905 - a list of words reads better so


def test_one_document_among_empty_ones(tmp_path: Path) -> None:
    text = "evictionHard: {}\n---\n# from a template\n"
    assert build({}, None, write(tmp_path, "a.yaml", KUBELET + text)).eviction_hard == {}


def test_as_json_with_much_that_is_not_ours(tmp_path: Path) -> None:
    """Keys that only look like ours pass, and none is taken for ours."""
    ours = {
        "evictionPressureTransitionPeriod": "0s",
        "evictionSoft": {"memory.available": "5%"},
        "evictionSoftGracePeriod": {"memory.available": "1m30s"},
        "enforceNodeAllocatable": ["none"],
    }

    def built(**others: object) -> RunConfig:
        text = json.dumps(IS_KUBELETS | others | ours, indent="\t")
        return build({}, None, write(tmp_path, "kubelet.json", text))

    config = built()
    for value in (None, {"a": [1]}):
        assert built(**dict.fromkeys(OTHER_FIELDS, value)) == config
    assert not set(OTHER_FIELDS) & set(KUBELET_KEYS)
    assert config.eviction_pressure_transition_period_ns == 300 * 10**9
    soft = [t for t in config.thresholds() if not t.hard]
    assert [(t.signal, t.grace_ns) for t in soft] == [("memory.available", 90 * 10**9)]
    assert "allocatableMemory.available" not in signals(config)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("own.yaml", "evction-hard: {}\n", ": unknown key 'evction-hard'; did you mean 'eviction-hard'"),
        ("own.yaml", "hold-limit: true\n", ": hold-limit: True is not a text"),
        ("own.yaml", "[]\n", ": is not a map of keys to values"),
        ("own.yaml", "kubelet-config: 5\n", ": kubelet-config: 5 is not the name"),
        ("own.yaml", "\xff\xfe\x00", ""),
        ("k.yaml", KUBELET + "evictionHart: {}\n", "unknown key 'evictionHart'; did you mean 'evictionHard'?"),
        ("k.yaml", KUBELET + "EvictionHard: {}\n", "did you mean 'evictionHard'?"),
        ("k.yaml", KUBELET + "evictionHard: {memory.available: 100}\n", 'memory.available: "100"'),
        ("k.yaml", KUBELET + "evictionHard: {memory.available: 1x}\n", "evictionHard: memory.available: 1x"),
        ("k.yaml", KUBELET + "localStorageCapacityIsolation: 1\n", "Isolation: 1 is not true or false"),
        ("k.yaml", KUBELET + "enforceNodeAllocatable: pods\n", "enforceNodeAllocatable: must be a list"),
        ("k.yaml", KUBELET + "evictionHard: memory.available<1Gi\n", "evictionHard: must be a map"),
        ("k.yaml", KUBELET + "evictionHard: {memory.available: }\n", "evictionHard: memory.available: has no value"),
        ("k.yaml", KUBELET + "systemReserved: {cpu: 1}\n", "systemReserved: cpu: 1 is not a text"),
        ("k.yaml", KUBELET + "---\n" + KUBELET, "holds 2 YAML documents"),
        ("k.yaml", "!!bool 7", "7"),
        ("k.yaml", KUBELET + "enforceNodeAllocatable: [podz]\n", "podz"),
        ("k.yaml", "apiVersion: v1\nkind: Pod\n", "is not a KubeletConfiguration"),
        ("k.yaml", "- 1\n", "not a map"),
        ("k.yaml", "a: [1\n", "expected"),
        ("k.yaml", "a: 2026-99-99\n", "is not a KubeletConfiguration"),
        *(
            ("k.yaml", f"{KUBELET}{key}: {{memory.reclaimable: 100Mi}}\n", f": {key}: {UNSUPPORTED}")
            for key in ("evictionHard", "evictionSoft", "evictionMinimumReclaim")
        ),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, name: str, text: str, problem: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError) as caught:
        build({}, *((str(path),) if name == "own.yaml" else (None, str(path))))
    line = str(caught.value)
    assert line.startswith(str(path))
    assert problem in line
    assert "\n" not in line


def test_drop_ins(tmp_path: Path) -> None:
    """The last one wins, entry by entry, and an error names the very file the bad entry is in."""
    main = write(tmp_path, "kubelet.yaml", KUBELET + "evictionMaxPodGracePeriod: 5\n")
    files = {
        "10-a.conf": "evictionHard: {memory.available: 2Gi}\nevictionMaxPodGracePeriod: null\n",
        "20-b.conf": "evictionHard: {memory.available: 3Gi}\n",
        "40.conf": "evictionHard: {nodefs.available: 1x}\n",
    }
    file = read_kubelet(main, KUBELET_KEYS)
    *drop_ins, bad = (read_kubelet(write(tmp_path, name, KUBELET + t), KUBELET_KEYS) for name, t in files.items())
    config, settings, *_ = resolve({}, file, tuple(drop_ins))
    assert config.eviction_hard == {**DEFAULT_HARD, "memory.available": "3Gi"}
    last = f"{tmp_path}/20-b.conf: evictionHard"
    origins = {name: entry.origin for name, entry in settings.maps["evictionHard"].items()}
    assert origins == dict.fromkeys(DEFAULT_HARD, "default") | {"memory.available": last}
    assert (config.origins["eviction_hard"], config.eviction_max_pod_grace_period_s) == (last, 0)
    with pytest.raises(ConfigError) as caught:
        resolve({}, file, (*drop_ins, bad))
    assert str(caught.value).startswith(f"{tmp_path}/40.conf: evictionHard: nodefs.available: 1x: ")

"""A KubeletConfiguration and its drop-ins: read as they are, refused by name, merged as the kubelet merges them."""

import json
from pathlib import Path

import pytest

from monitor.errors import ConfigError
from monitor.policy.thresholds import DEFAULT_HARD
from monitor.settings.files import read_kubelet
from monitor.settings.options import KUBELET_KEYS
from monitor.settings.read import resolve
from tests.daemon.config_files import KUBELET, build, write

#: Of the fields of a KubeletConfiguration of Kubernetes 1.36 that are not ours, those that are spelt most alike.
OTHER_FIELDS = """
systemReservedCgroup kubeReservedCgroup qosReserved cgroupsPerQOS shutdownGracePeriod cgroupDriver reservedMemory
systemCgroups enableServer resolvConf failCgroupV1 authentication reservedSystemCPUs
""".split()  # noqa: SIM905 - a list of words reads better so


def test_one_document_among_empty_ones(tmp_path: Path) -> None:
    text = "evictionHard: {}\n---\n# from a template\n"
    assert build({}, None, write(tmp_path, "a.yaml", KUBELET + text)).eviction_hard == {}


def test_kubelet_configuration_as_json_with_much_that_is_not_ours(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "authentication": {"anonymous": {"enabled": False}},
            "clusterDNS": ["192.0.2.10"],
            "evictionPressureTransitionPeriod": "0s",
            "evictionSoft": {"memory.available": "5%"},
            "evictionSoftGracePeriod": {"memory.available": "1m30s"},
            "enforceNodeAllocatable": ["none"],
        },
        indent="\t",
    )
    config = build({}, None, write(tmp_path, "kubelet.json", text))
    assert config.eviction_pressure_transition_period_ns == 300 * 10**9
    soft = [t for t in config.thresholds() if not t.hard]
    assert [(t.signal, t.grace_ns) for t in soft] == [("memory.available", 90 * 10**9)]
    assert "allocatableMemory.available" not in [t.signal for t in config.thresholds()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (KUBELET + "evictionHart: {}\n", "unknown key 'evictionHart'; did you mean 'evictionHard'?"),
        (KUBELET + "EvictionHard: {}\n", "did you mean 'evictionHard'?"),
        (KUBELET + "evictionHard: {memory.available: 100}\n", 'memory.available: "100"'),
        (KUBELET + "evictionHard: {memory.available: 1x}\n", "evictionHard: memory.available: 1x"),
        (KUBELET + "localStorageCapacityIsolation: 1\n", "localStorageCapacityIsolation: 1 is not true or false"),
        (KUBELET + "evictionMaxPodGracePeriod: '5'\n", "evictionMaxPodGracePeriod: '5' is not a whole number"),
        (KUBELET + "evictionPressureTransitionPeriod: 5\n", "evictionPressureTransitionPeriod: 5 is not a text"),
        (KUBELET + "enforceNodeAllocatable: pods\n", "enforceNodeAllocatable: must be a list"),
        (KUBELET + "evictionHard: memory.available<1Gi\n", "evictionHard: must be a map"),
        (KUBELET + "evictionHard: {memory.available: }\n", "evictionHard: memory.available: has no value"),
        (KUBELET + "systemReserved: {cpu: 1}\n", "systemReserved: cpu: 1 is not a text"),
        (KUBELET + "systemReserved: {ram: 1Gi}\n", "systemReserved: ram: 1Gi: cannot be reserved; resources are cpu,"),
        (KUBELET + "---\n" + KUBELET, "holds 2 YAML documents"),
        ("!!bool 7", "7"),
        (KUBELET + "enforceNodeAllocatable: [podz]\n", "podz"),
        ("apiVersion: v1\nkind: Pod\n", "is not a KubeletConfiguration"),
        ("- 1\n", "not a map"),
        ("a: [1\n", "expected"),
        ("a: 2026-99-99\n", "is not a KubeletConfiguration"),
    ],
)
def test_bad_kubelet_configuration(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, "kubelet.yaml", text)
    with pytest.raises(ConfigError) as caught:
        build({}, None, path)
    line = str(caught.value)
    assert line.startswith(path)
    assert expected in line
    assert "\n" not in line


def test_keys_that_only_look_like_ours(tmp_path: Path) -> None:
    """They pass, and none is taken for ours."""
    text = KUBELET + "".join(f"{field}: null\n" for field in OTHER_FIELDS)
    assert build({}, None, write(tmp_path, "kubelet.yaml", text)) == build({})
    assert not set(OTHER_FIELDS) & set(KUBELET_KEYS)


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

"""A KubeletConfiguration and its drop-ins: read as they are, refused by name, merged as the kubelet merges them."""

import json
from pathlib import Path

import pytest

from monitor.errors import ConfigError
from monitor.policy.configuration import Given, Source
from monitor.policy.thresholds import DEFAULT_HARD
from monitor.settings.files import read_kubelet
from monitor.settings.options import KUBELET_KEYS
from monitor.settings.read import resolve
from tests.daemon.config_files import KUBELET, build, write

#: The fields of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1) that say nothing about eviction.
OTHER_FIELDS = """
enableServer staticPodPath podLogsDir syncFrequency fileCheckFrequency httpCheckFrequency staticPodURL
staticPodURLHeader address port readOnlyPort tlsCertFile tlsPrivateKeyFile tlsCipherSuites tlsMinVersion
tlsCurvePreferences rotateCertificates serverTLSBootstrap authentication authorization registryPullQPS registryBurst
imagePullCredentialsVerificationPolicy preloadedImagesVerificationAllowlist eventRecordQPS eventBurst
enableDebuggingHandlers enableContentionProfiling healthzPort healthzBindAddress oomScoreAdj clusterDomain clusterDNS
streamingConnectionIdleTimeout nodeStatusUpdateFrequency nodeStatusReportFrequency nodeLeaseDurationSeconds
imageMinimumGCAge imageMaximumGCAge imageGCHighThresholdPercent imageGCLowThresholdPercent volumeStatsAggPeriod
kubeletCgroups systemCgroups cgroupsPerQOS cgroupDriver cpuManagerPolicy singleProcessOOMKill cpuManagerPolicyOptions
cpuManagerReconcilePeriod memoryManagerPolicy topologyManagerPolicy topologyManagerScope topologyManagerPolicyOptions
qosReserved runtimeRequestTimeout hairpinMode maxPods podCIDR podPidsLimit resolvConf runOnce cpuCFSQuota
cpuCFSQuotaPeriod nodeStatusMaxImages maxOpenFiles contentType kubeAPIQPS kubeAPIBurst serializeImagePulls
maxParallelImagePulls podsPerCore enableControllerAttachDetach protectKernelDefaults makeIPTablesUtilChains
iptablesMasqueradeBit iptablesDropBit featureGates failSwapOn memorySwap containerLogMaxSize containerLogMaxFiles
containerLogMaxWorkers containerLogMonitorInterval configMapAndSecretChangeDetectionStrategy systemReservedCgroup
kubeReservedCgroup reservedSystemCPUs showHiddenMetricsForVersion volumePluginDir providerID logging
enableSystemLogHandler enableSystemLogQuery shutdownGracePeriod shutdownGracePeriodCriticalPods
shutdownGracePeriodByPodPriority crashLoopBackOff reservedMemory enableProfilingHandler enableDebugFlagsHandler
seccompDefault memoryThrottlingFactor memoryReservationPolicy registerWithTaints registerNode tracing
containerRuntimeEndpoint imageServiceEndpoint failCgroupV1 userNamespaces
""".split()  # noqa: SIM905 - a list of words reads better so


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("evictionHard: {nodefs.available: 7%}\n", {"nodefs.available": "7%"}),
        (
            "evictionHard: {nodefs.available: 7%}\nmergeDefaultEvictionSettings: true\n",
            {**DEFAULT_HARD, "nodefs.available": "7%"},
        ),
        ("evictionHard: {}\n", {}),
        ("evictionHard:\n", DEFAULT_HARD),
        ("evictionHard: {}\n---\n# from a template\n", {}),  # one document among empty ones
    ],
)
def test_kubelets_all_or_nothing_rule(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    assert build({}, None, write(tmp_path, "a.yaml", KUBELET + text)).eviction_hard == expected


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
        (KUBELET + "evictionHard: {}\nevictionHard: {}\n", "line 4: key 'evictionHard' is given twice"),
        (KUBELET + "mergeDefaultEvictionSettings: 1\n", "mergeDefaultEvictionSettings"),
        (KUBELET + "MergeDefaultEvictionSettings: true\n", "did you mean 'mergeDefaultEvictionSettings'?"),
        (KUBELET + "kernelMemCgroupNotification: true\n", "did you mean 'kernelMemcgNotification'?"),
        (KUBELET + "kubereserved: {}\n", "did you mean 'kubeReserved'?"),
        (KUBELET + "localStorageCapacityIsolation: 1\n", "localStorageCapacityIsolation: 1 is not true or false"),
        (KUBELET + "evictionMaxPodGracePeriod: '5'\n", "evictionMaxPodGracePeriod: '5' is not a whole number"),
        (KUBELET + "evictionPressureTransitionPeriod: 5\n", "evictionPressureTransitionPeriod: 5 is not a text"),
        (KUBELET + "enforceNodeAllocatable: pods\n", "enforceNodeAllocatable: must be a list"),
        (KUBELET + "evictionHard: memory.available<1Gi\n", "evictionHard: must be a map"),
        (KUBELET + "evictionHard: {memory.available: }\n", "evictionHard: memory.available: has no value"),
        (KUBELET + "systemReserved: {ram: 1Gi}\n", "systemReserved: ram: 1Gi: cannot be reserved; resources are cpu,"),
        (KUBELET + "---\n" + KUBELET, "holds 2 YAML documents"),
        ("{" + '"kind": "KubeletConfiguration", "kind": "x"' + "}", "key 'kind' is given twice"),
        ("!!bool 7", "7"),
        (KUBELET + "enforceNodeAllocatable: [podz]\n", "podz"),
        ("apiVersion: v1\nkind: Pod\n", "is not a KubeletConfiguration"),
        ("- 1\n", "not a map"),
        ("a: [1\n", "expected"),
        ("a: 2026-99-99\n", "is not a KubeletConfiguration"),
        ("[" * 5000, "nested too deeply: more than 64 levels"),
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
    """Every field of a KubeletConfiguration of Kubernetes 1.36 that is not ours passes, and none is taken for ours."""
    text = KUBELET + "".join(f"{field}: null\n" for field in OTHER_FIELDS)
    assert build({}, None, write(tmp_path, "kubelet.yaml", text)) == build({})
    assert not set(OTHER_FIELDS) & set(KUBELET_KEYS)


def test_drop_ins(tmp_path: Path) -> None:
    main = write(tmp_path, "kubelet.yaml", KUBELET + "evictionMaxPodGracePeriod: 5\nsystemReserved: {memory: 1Gi}\n")
    files = {
        "10-a.conf": "evictionHard: {memory.available: 2Gi, imagefs.available: null}\n"
        "evictionMaxPodGracePeriod: null\n",
        "15-x.conf": "evictionHard: {nodefs.available: 1%}\nsystemReserved: {cpu: 100m}\n",
        "20-b.conf": "evictionHard: {memory.available: 3Gi}\n",
    }

    def drop_in(name: str, text: str) -> Source:
        return read_kubelet(write(tmp_path, name, KUBELET + text), KUBELET_KEYS)

    file, drop_ins = read_kubelet(main, KUBELET_KEYS), tuple(drop_in(*one) for one in files.items())
    config, settings, *_ = resolve({}, file, drop_ins)
    assert config.eviction_hard == {
        "memory.available": "3Gi",
        "nodefs.available": "1%",
        "nodefs.inodesFree": "5%",
        "imagefs.inodesFree": "5%",
    }
    assert {name: entry.origin for name, entry in settings.maps["evictionHard"].items()} == {
        "memory.available": f"{tmp_path}/20-b.conf: evictionHard",
        "nodefs.available": f"{tmp_path}/15-x.conf: evictionHard",
        "nodefs.inodesFree": "default",
        "imagefs.inodesFree": "default",
    }
    assert config.origins["eviction_hard"] == f"{tmp_path}/20-b.conf: evictionHard"
    assert (config.eviction_max_pod_grace_period_s, config.system_reserved) == (0, 1 << 30)
    assert {name: entry.origin for name, entry in settings.maps["systemReserved"].items()} == {
        "memory": f"{main}: systemReserved",
        "cpu": f"{tmp_path}/15-x.conf: systemReserved",
    }
    flag = {"eviction-hard": Given("pid.available<1%", "--eviction-hard")}
    assert resolve(flag, file, drop_ins).config.eviction_hard == {"pid.available": "1%"}
    # An error names the very file the bad entry is in.
    bad = drop_in("40.conf", "evictionHard: {nodefs.available: 1x}\n")
    with pytest.raises(ConfigError) as caught:
        resolve({}, file, (*drop_ins, bad))
    assert str(caught.value).startswith(f"{tmp_path}/40.conf: evictionHard: nodefs.available: 1x: ")


def test_drop_ins_alone_come_on_top_of_the_defaults(tmp_path: Path) -> None:
    drop_in = Source("a.conf", {"evictionHard": {"memory.available": "2Gi"}})
    assert resolve({}, None, (drop_in,)).config.eviction_hard == {**DEFAULT_HARD, "memory.available": "2Gi"}

"""The configuration: what is accepted, what is refused and in which words, and where each value came from."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import ConfigError
from monitor.policy.kubelet_1_17 import KUBELET_1_17
from monitor.policy.thresholds import DEFAULT_HARD, LESS_THAN
from monitor.settings.config import RunConfig
from monitor.settings.read import KUBELET_KEYS, SETTINGS, build

KUBELET = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
#: The fields of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1) that say nothing about eviction.
OTHER_FIELDS = """
enableServer staticPodPath podLogsDir syncFrequency fileCheckFrequency httpCheckFrequency staticPodURL
staticPodURLHeader address port readOnlyPort tlsCertFile tlsPrivateKeyFile tlsCipherSuites tlsMinVersion
tlsCurvePreferences rotateCertificates serverTLSBootstrap authentication authorization registryPullQPS
registryBurst imagePullCredentialsVerificationPolicy preloadedImagesVerificationAllowlist eventRecordQPS
eventBurst enableDebuggingHandlers enableContentionProfiling healthzPort healthzBindAddress oomScoreAdj
clusterDomain clusterDNS streamingConnectionIdleTimeout nodeStatusUpdateFrequency nodeStatusReportFrequency
nodeLeaseDurationSeconds imageMinimumGCAge imageMaximumGCAge imageGCHighThresholdPercent
imageGCLowThresholdPercent volumeStatsAggPeriod kubeletCgroups systemCgroups cgroupsPerQOS
cgroupDriver cpuManagerPolicy singleProcessOOMKill cpuManagerPolicyOptions cpuManagerReconcilePeriod
memoryManagerPolicy topologyManagerPolicy topologyManagerScope topologyManagerPolicyOptions qosReserved
runtimeRequestTimeout hairpinMode maxPods podCIDR podPidsLimit resolvConf runOnce cpuCFSQuota
cpuCFSQuotaPeriod nodeStatusMaxImages maxOpenFiles contentType kubeAPIQPS kubeAPIBurst serializeImagePulls
maxParallelImagePulls podsPerCore enableControllerAttachDetach protectKernelDefaults makeIPTablesUtilChains
iptablesMasqueradeBit iptablesDropBit featureGates failSwapOn memorySwap containerLogMaxSize
containerLogMaxFiles containerLogMaxWorkers containerLogMonitorInterval
configMapAndSecretChangeDetectionStrategy systemReservedCgroup kubeReservedCgroup reservedSystemCPUs
showHiddenMetricsForVersion volumePluginDir providerID logging enableSystemLogHandler enableSystemLogQuery
shutdownGracePeriod shutdownGracePeriodCriticalPods shutdownGracePeriodByPodPriority crashLoopBackOff
reservedMemory enableProfilingHandler enableDebugFlagsHandler seccompDefault memoryThrottlingFactor
memoryReservationPolicy registerWithTaints registerNode tracing containerRuntimeEndpoint
imageServiceEndpoint failCgroupV1 userNamespaces
""".split()  # noqa: SIM905 - a list of words reads better so


def write(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_defaults_are_the_kubelets() -> None:
    config = build({})
    assert config.eviction_hard == DEFAULT_HARD
    assert config.eviction_pressure_transition_period_ns == 300 * 10**9
    assert config.eviction_max_pod_grace_period_s == 0
    assert (config.listen_host, config.listen_port, config.state_dir) == ("127.0.0.1", 9469, "/var/lib/outrace")
    assert (config.pods, config.trigger, config.hooks, config.mode) == ("cgroups", "user", "auto", "observe")
    assert (config.max_fill_rate, config.step) == (12 << 30, 1 << 20)
    assert set(config.origins.values()) == {"default"}
    signals = [t.signal for t in config.thresholds()]
    assert signals[:2] == ["memory.available", "allocatableMemory.available"]


@pytest.mark.parametrize(
    ("flags", "names", "says"),
    [
        ({"eviction-hard": "memory.free<1Gi"}, "--eviction-hard: memory.free", "signals are memory.available"),
        ({"eviction-hard": "memory.available<1x"}, "--eviction-hard: memory.available: 1x", "quantity such as 100Mi"),
        ({"eviction-hard": "memory.available<-1"}, "--eviction-hard: memory.available", "must be positive"),
        ({"eviction-hard": "memory.available<1e30"}, "--eviction-hard: memory.available: 1e30", "at most 4Ei; write"),
        ({"eviction-hard": "memory.available<5Ei"}, "--eviction-hard: memory.available: 5Ei", "at most 4Ei; write"),
        ({"eviction-minimum-reclaim": "memory.available=1e30"}, "--eviction-minimum-reclaim", "at most 4Ei; write"),
        (
            {"eviction-soft": "memory.available<1e30", "eviction-soft-grace-period": "memory.available=1s"},
            "--eviction-soft: memory.available: 1e30",
            "at most 4Ei; write",
        ),
        ({"eviction-hard": "memory.available"}, "--eviction-hard: malformed pair", "memory.available<100Mi"),
        ({"eviction-soft": "memory.available<1Gi"}, "--eviction-soft: memory.available", "eviction-soft-grace-period"),
        ({"eviction-soft-grace-period": "memory.available=5"}, "--eviction-soft-grace-period", "duration such as 90s"),
        ({"eviction-minimum-reclaim": "memory.available=-1"}, "--eviction-minimum-reclaim", "negative"),
        ({"eviction-pressure-transition-period": "-1s"}, "--eviction-pressure-transition-period", "negative"),
        ({"system-reserved": "ram=1Gi"}, "--system-reserved", "memory"),
        ({"kube-reserved": "memory=-1Gi"}, "--kube-reserved", "from 0"),
        ({"listen": "9469"}, "--listen", "HOST:PORT"),
        ({"listen": "localhost:65536"}, "--listen", "HOST:PORT"),
        ({"pods": "manifests:/no/such/directory"}, "--pods", "not a directory"),
        ({"pods": "kubelet:https://localhost:10250"}, "--pods", "not in this version"),
        ({"pods": "docker"}, "--pods", "cgroups or manifests:DIR"),
        ({"hooks": "uprobe"}, "--hooks", "memcg-tracepoint"),
        ({"trigger": "nobody"}, "--trigger", "user, kernel"),
        ({"step": "0"}, "--step", "1 to 4Ei"),
        ({"step": "20E"}, "--step", "1 to 4Ei"),  # its whole value wraps round to a positive number
        ({"max-fill-rate": "fast"}, "--max-fill-rate", "quantity"),
        ({"record": "/no/such/directory/run.rec"}, "--record", "does not exist"),
        ({"record": "/"}, "--record", "is a directory"),
        ({"alertmanager": ("localhost:9093",)}, "--alertmanager", "http://"),
        ({"webhook": ("http://localhost:0/",)}, "--webhook", "port 0"),
        ({"log-format": "xml"}, "--log-format", "logfmt, json"),
        ({"policy": "kubelet-1.20"}, "--policy: 'kubelet-1.20'", "kubelet-1.36, kubelet-1.17, kubelet-1.8"),
        (
            {"policy": "kubelet-1.8", "eviction-hard": "pid.available<5%"},
            "--eviction-hard: pid",
            "kubelet-1.8 does not",
        ),
        ({"compat": "insane"}, "--compat: 'insane'", "sane, kubelet-1.36"),
        ({"nodefs": "var/lib/kubelet"}, "--nodefs: 'var/lib/kubelet'", "not an absolute path"),
        ({"imagefs": ""}, "--imagefs: ''", "not a text"),
        ({"reclaim-images": "crictl 'rmi"}, "--reclaim-images: ", "No closing quotation"),
        ({"reclaim-containers": "'' x"}, "--reclaim-containers: ", "no name"),
        ({"reclaim-containers": ["crictl", 5]}, "--reclaim-containers: ", "not a command"),
        ({"local-storage-capacity-isolation": "maybe"}, "--local-storage-capacity-isolation: 'maybe'", "true or false"),
        ({"eviction-max-pod-grace-period": 2**31}, "--eviction-max-pod-grace-period: 2147483648", "beyond 32 bits"),
    ],
)
def test_bad_flag_is_one_line_with_option_and_remedy(flags: dict[str, str], names: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(flags)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(names)
    assert says in line
    assert caught.value.exit_code == 2


def test_the_largest_threshold() -> None:
    assert build({"eviction-hard": "memory.available<4Ei"}).thresholds()[0].quantity(1 << 30) == 1 << 62


def test_precedence_and_origin(tmp_path: Path) -> None:
    kubelet = write(
        tmp_path,
        "kubelet.yaml",
        KUBELET + "evictionHard: {memory.available: 1Gi}\nevictionMaxPodGracePeriod: 30\nmaxPods: 110\n"
        "systemReserved: {memory: 300Mi, cpu: 100m}\nkernelMemcgNotification: true\n",
    )
    own = write(tmp_path, "own.yaml", "eviction-hard: {memory.available: 2Gi}\neviction-max-pod-grace-period: 20\n")
    config = build({"eviction-hard": "memory.available<3Gi"}, own, kubelet)
    assert config.eviction_hard == {"memory.available": "3Gi"}
    assert config.eviction_max_pod_grace_period_s == 20
    assert config.system_reserved == 300 << 20
    assert config.kernel_memcg_notification
    assert config.origins["eviction_hard"] == "--eviction-hard"
    assert config.origins["eviction_max_pod_grace_period_s"] == f"{own}: eviction-max-pod-grace-period"
    assert config.origins["system_reserved"] == f"{kubelet}: systemReserved"
    assert config.origins["pods"] == "default"


def test_a_flag_can_take_back_what_a_file_says(tmp_path: Path) -> None:
    own = write(tmp_path, "own.yaml", "enforce: true\n")
    assert build({}, own).enforce
    assert not build({"enforce": False}, own).enforce


def test_own_file_in_toml(tmp_path: Path) -> None:
    own = write(tmp_path, "own.toml", 'step = "2Mi"\n[eviction-hard]\n"memory.available" = "7%"\n')
    config = build({}, own)
    assert (config.step, config.eviction_hard) == (2 << 20, {"memory.available": "7%"})


def test_own_file_can_name_the_kubelets(tmp_path: Path) -> None:
    kubelet = write(tmp_path, "kubelet.yaml", KUBELET + "evictionHard: {memory.available: 9%}\n")
    assert build({}, write(tmp_path, "own.yaml", f"kubelet-config: {kubelet}\n")).eviction_hard == {
        "memory.available": "9%"
    }


def test_kubelets_all_or_nothing_rule(tmp_path: Path) -> None:
    one = "evictionHard: {nodefs.available: 7%}\n"
    only = build({}, None, write(tmp_path, "a.yaml", KUBELET + one))
    assert only.eviction_hard == {"nodefs.available": "7%"}
    merged = build({}, None, write(tmp_path, "b.yaml", KUBELET + one + "mergeDefaultEvictionSettings: true\n"))
    assert merged.eviction_hard == {**DEFAULT_HARD, "nodefs.available": "7%"}
    none = build({}, None, write(tmp_path, "c.yaml", KUBELET + "evictionHard: {}\n"))
    assert none.eviction_hard == {}
    absent = build({}, None, write(tmp_path, "d.yaml", KUBELET + "evictionHard:\n"))
    assert absent.eviction_hard == DEFAULT_HARD


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
        }
    )
    config = build({}, None, write(tmp_path, "kubelet.json", text))
    assert config.eviction_pressure_transition_period_ns == 300 * 10**9
    soft = [t for t in config.thresholds() if not t.hard]
    assert [(t.signal, t.grace_ns) for t in soft] == [("memory.available", 90 * 10**9)]
    assert "allocatableMemory.available" not in [t.signal for t in config.thresholds()]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (KUBELET + "evictionHart: {}\n", "unknown key 'evictionHart'; did you mean 'evictionHard'?"),
        (KUBELET + "EvictionHard: {}\n", "did you mean 'evictionHard'?"),
        (KUBELET + "evictionHard: {memory.available: 100}\n", 'memory.available: "100"'),
        (KUBELET + "evictionHard: [memory.available]\n", "evictionHard"),
        (KUBELET + "evictionHard: {memory.available: 1x}\n", "evictionHard: memory.available: 1x"),
        (KUBELET + "evictionHard: {}\nevictionHard: {}\n", "line 4: key 'evictionHard' is given twice"),
        (KUBELET + "kernelMemcgNotification: 'yes'\n", "kernelMemcgNotification"),
        (KUBELET + "mergeDefaultEvictionSettings: 1\n", "mergeDefaultEvictionSettings"),
        (KUBELET + "mergeDefaultEvictionSetting: true\n", "did you mean 'mergeDefaultEvictionSettings'?"),
        (KUBELET + "MergeDefaultEvictionSettings: true\n", "did you mean 'mergeDefaultEvictionSettings'?"),
        (KUBELET + "enforceNodeAllocateable: []\n", "did you mean 'enforceNodeAllocatable'?"),
        (KUBELET + "kernelMemCgroupNotification: true\n", "did you mean 'kernelMemcgNotification'?"),
        (KUBELET + "systemReserve: {}\n", "did you mean 'systemReserved'?"),
        (KUBELET + "kubereserved: {}\n", "did you mean 'kubeReserved'?"),
        (KUBELET + "evctionSoft: {}\n", "did you mean 'evictionSoft'?"),
        (KUBELET + "localstorageCapacityIsolation: true\n", "did you mean 'localStorageCapacityIsolation'?"),
        (KUBELET + "localStorageCapacityIsolation: 1\n", "localStorageCapacityIsolation: 1 is not true or false"),
        (KUBELET + "evictionMaxPodGracePeriod: '5'\n", "evictionMaxPodGracePeriod: '5' is not a whole number"),
        (KUBELET + "evictionMaxPodGracePeriod: 5000000000\n", "beyond 32 bits"),
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
def test_bad_kubelet_configuration(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, "kubelet.yaml", text)
    with pytest.raises(ConfigError) as caught:
        build({}, None, path)
    line = str(caught.value)
    assert line.startswith(path)
    assert says in line
    assert "\n" not in line


def test_keys_that_only_look_like_ours(tmp_path: Path) -> None:
    """Every field of a KubeletConfiguration of Kubernetes 1.36 that is not ours passes, and none is taken for ours."""
    text = KUBELET + "".join(f"{field}: null\n" for field in OTHER_FIELDS)
    assert build({}, None, write(tmp_path, "kubelet.yaml", text)) == build({})
    assert not set(OTHER_FIELDS) & set(KUBELET_KEYS)


def test_json_with_tabs_and_one_document_among_empty_ones(tmp_path: Path) -> None:
    text = '{\n\t"kind":"KubeletConfiguration",\n\t"apiVersion":"kubelet.config.k8s.io/v1beta1",\n\t"evictionHard":{}}'
    assert build({}, None, write(tmp_path, "tabs.json", text)).eviction_hard == {}
    text = "# from a template\n---\n" + KUBELET + "evictionHard: {}\n---\n"
    assert build({}, None, write(tmp_path, "empty.yaml", text)).eviction_hard == {}


def test_drop_ins(tmp_path: Path) -> None:
    main = write(tmp_path, "kubelet.yaml", KUBELET + "evictionMaxPodGracePeriod: 5\nsystemReserved: {memory: 1Gi}\n")
    directory = tmp_path / "conf.d"
    (directory / "15-more").mkdir(parents=True)
    files = {
        "20-b.conf": "evictionHard: {memory.available: 3Gi}\n",
        "10-a.conf": "evictionHard: {memory.available: 2Gi, imagefs.available: null}\n"
        "evictionMaxPodGracePeriod: null\n",
        "15-more/x.conf": "evictionHard: {nodefs.available: 1%}\nsystemReserved: {cpu: 100m}\n",
        "30-not-read.yaml": "evictionHard: {}\n",
    }
    for name, text in files.items():
        (directory / name).write_text(KUBELET + text)
    (directory / "linked.conf.d").symlink_to(directory / "15-more")
    own = write(tmp_path, "own.yaml", f"kubelet-config: {main}\nkubelet-config-dir: {directory}\n")
    config = build({}, own)
    assert config == build({}, None, main, str(directory))
    assert config.eviction_hard == {
        "memory.available": "3Gi",
        "nodefs.available": "1%",
        "nodefs.inodesFree": "5%",
        "imagefs.inodesFree": "5%",
    }
    assert config.entry_origins["eviction_hard"] == {
        "memory.available": f"{directory}/20-b.conf: evictionHard",
        "nodefs.available": f"{directory}/15-more/x.conf: evictionHard",
        "nodefs.inodesFree": "default",
        "imagefs.inodesFree": "default",
    }
    assert config.origins["eviction_hard"] == f"{directory}/20-b.conf: evictionHard"
    assert (config.eviction_max_pod_grace_period_s, config.system_reserved) == (0, 1 << 30)
    assert config.entry_origins["system_reserved"] == {
        "memory": f"{main}: systemReserved",
        "cpu": f"{directory}/15-more/x.conf: systemReserved",
    }
    assert build({"eviction-hard": "pid.available<1%"}, own).eviction_hard == {"pid.available": "1%"}
    # An error names the very file the bad entry is in.
    (directory / "40.conf").write_text(KUBELET + "evictionHard: {nodefs.available: 1x}\n")
    with pytest.raises(ConfigError) as caught:
        build({}, own)
    assert str(caught.value).startswith(f"{directory}/40.conf: evictionHard: nodefs.available: 1x: ")
    (directory / "40.conf").write_text("evictionHard: {nodefs.available: 1%}\n")
    with pytest.raises(ConfigError, match=r"40\.conf: is not a KubeletConfiguration .*a drop-in needs"):
        build({}, own)


def test_a_directory_of_drop_ins_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", Path(write(tmp_path, "file", ""))):
        with pytest.raises(ConfigError, match=f"^{path}: cannot be read: .*--config-dir"):
            build({}, None, None, str(path))
    with pytest.raises(ConfigError, match=r"own\.yaml: kubelet-config-dir: 5 is not the name"):
        build({}, write(tmp_path, "own.yaml", "kubelet-config-dir: 5\n"))


def test_drop_ins_alone_come_on_top_of_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text(KUBELET + "evictionHard: {memory.available: 2Gi}\n")
    assert build({}, None, None, str(tmp_path)).eviction_hard == {**DEFAULT_HARD, "memory.available": "2Gi"}


def test_an_older_policy_has_its_own_defaults(tmp_path: Path) -> None:
    old = build({"policy": "kubelet-1.8"})
    assert old.eviction_hard == {"memory.available": "100Mi"}
    assert old.origins["eviction_hard"] == "default"
    assert [t.signal for t in old.thresholds()] == ["memory.available", "allocatableMemory.available"]
    kubelet = KUBELET + "evictionHard: {nodefs.available: 1%}\nmergeDefaultEvictionSettings: true\n"
    merged = build({"policy": "kubelet-1.17"}, None, write(tmp_path, "kubelet.yaml", kubelet))
    assert merged.eviction_hard == {**KUBELET_1_17.default_hard, "nodefs.available": "1%"}


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


def test_compat_reaches_the_pass() -> None:
    assert build({}).eviction_config().compat == "sane"
    assert build({"compat": "kubelet-1.36"}).eviction_config().compat == "kubelet-1.36"


def test_commands_and_paths(tmp_path: Path) -> None:
    own = write(tmp_path, "own.yaml", "reclaim-images: [crictl, rmi, --prune]\nnodefs: /var//lib/\nimagefs: /srv\n")
    config = build({"reclaim-containers": "sh -c 'exit 0'", "imagefs": "/mnt"}, own)
    assert config.reclaim_images == ("crictl", "rmi", "--prune")
    assert config.reclaim_containers == ("sh", "-c", "exit 0")
    assert build({"reclaim-images": ""}, own).reclaim_images == ()
    assert (config.nodefs, config.imagefs, config.containerfs) == ("/var/lib", "/mnt", None)


@pytest.mark.parametrize("value", [True, False])
def test_local_storage(tmp_path: Path, value: bool) -> None:
    kubelet = write(tmp_path, "k.yaml", KUBELET + f"localStorageCapacityIsolation: {str(value).lower()}\n")
    assert build({}).local_storage
    assert build({}, None, kubelet).local_storage == value
    assert build({"local-storage-capacity-isolation": not value}, None, kubelet).local_storage != value


def test_bad_own_file(tmp_path: Path) -> None:
    path = write(tmp_path, "own.yaml", "evction-hard: {}\n")
    with pytest.raises(ConfigError, match=r"own\.yaml: unknown key 'evction-hard'; did you mean 'eviction-hard'"):
        build({}, path)
    with pytest.raises(ConfigError, match=r"own\.yaml: step: True is not a quantity"):
        build({}, write(tmp_path, "own.yaml", "step: true\n"))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        build({}, str(tmp_path / "missing.yaml"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.yaml"):
        build({}, str(tmp_path / "binary.yaml"))


@given(st.text(max_size=200))
def test_any_text_in_a_file_gives_a_configuration_or_a_clear_error(tmp_path_factory: Any, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    for arguments in ((str(path), None), (None, str(path))):
        try:
            build({}, *arguments)
        except ConfigError as error:
            refusal = str(error)
        else:
            continue
        assert refusal.startswith(str(path))
        assert "\n" not in refusal


@given(st.sampled_from([s.option for s in SETTINGS]), st.text(max_size=40))
def test_any_text_of_an_option_gives_a_configuration_or_a_clear_error(option: str, text: str) -> None:
    try:
        config = build({option: text})
    except ConfigError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert config.origins[next(s.field for s in SETTINGS if s.option == option)] == f"--{option}"
    assert refusal == "" or refusal.startswith(f"--{option}: ")
    assert "\n" not in refusal


def test_json_round_trip_through_an_inherited_descriptor(tmp_path: Path) -> None:
    flags = {"reclaim-images": "crictl rmi --prune", "policy": "kubelet-1.17", "compat": "kubelet-1.36", "nodefs": "/"}
    flags |= {"alertmanager": ("http://127.0.0.1:9093",), "webhook": ["http://127.0.0.1:1/x"]}
    flags |= {"eviction-hard": "memory.available<10%", "pods": f"manifests:{tmp_path}"}
    config = build({**flags, "enforce": True})
    config = dataclasses.replace(
        config, pin_dir="/sys/fs/bpf/outrace/x", lock_fd=3, listen_fd=4, layout_image_fs=True, layout_container_fs=True
    )
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

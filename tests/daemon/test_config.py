"""The configuration: what is accepted, what is refused and in which words, and where each value came from."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import ConfigError
from monitor.policy.old_releases import KUBELET_1_17
from monitor.policy.thresholds import DEFAULT_HARD, LESS_THAN
from monitor.settings.config import RunConfig
from monitor.settings.documented import shown_value
from monitor.settings.options import SETTINGS, Option
from monitor.settings.read import build
from tests.daemon.config_files import KUBELET, write


def test_defaults_are_the_kubelets() -> None:
    config = build({})
    assert config.eviction_hard == DEFAULT_HARD
    assert config.eviction_pressure_transition_period_ns == 300 * 10**9
    assert config.eviction_max_pod_grace_period_s == 0
    assert (config.listen_host, config.listen_port, config.state_dir) == ("127.0.0.1", 9469, "/var/lib/outrace")
    assert (config.pods, config.trigger, config.hooks, config.mode) == ("auto", "user", "auto", "observe")
    assert (config.max_fill_rate, config.step) == (12 << 30, 1 << 20)
    assert set(config.origins.values()) == {"default"}
    signals = [t.signal for t in config.thresholds()]
    assert signals[:2] == ["memory.available", "allocatableMemory.available"]


@pytest.mark.parametrize(
    ("flags", "names", "expected"),
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
        ({"pods": "kubelet:localhost:10250"}, "--pods", "names no http or https URL"),
        ({"pods": "docker"}, "--pods", "manifests:DIR, services or cgroups"),
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
        ({"reclaim-containers": "cri"}, "--reclaim-containers: ", "write a command such as"),
        ({"local-storage-capacity-isolation": "maybe"}, "--local-storage-capacity-isolation: 'maybe'", "true or false"),
        ({"eviction-max-pod-grace-period": 2**31}, "--eviction-max-pod-grace-period: 2147483648", "beyond 32 bits"),
    ],
)
def test_bad_flag_is_one_line_with_option_and_remedy(flags: dict[str, str], names: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(flags)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(names)
    assert expected in line
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
    assert (config.eviction_max_pod_grace_period_s, config.system_reserved) == (20, 300 << 20)
    assert config.kernel_memcg_notification
    assert config.origins["eviction_hard"] == "--eviction-hard"
    assert config.origins["eviction_max_pod_grace_period_s"] == f"{own}: eviction-max-pod-grace-period"
    assert config.origins["system_reserved"] == f"{kubelet}: systemReserved"
    assert config.origins["pods"] == "default"


def test_a_flag_can_take_back_what_a_file_sets(tmp_path: Path) -> None:
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


def test_an_older_policy_has_its_own_defaults(tmp_path: Path) -> None:
    old = build({"policy": "kubelet-1.8"})
    assert (old.eviction_hard, old.origins["eviction_hard"]) == ({"memory.available": "100Mi"}, "default")
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
    assert build({}).pass_config().compat == "sane"
    assert build({"compat": "kubelet-1.36"}).pass_config().compat == "kubelet-1.36"


def test_what_cleans_up() -> None:
    config = build({"reclaim-containers": "podman", "reclaim-images": "crictl"})
    assert config.reclaim_containers == ("podman", "container", "prune", "--force")
    assert config.reclaim_images == ("crictl", "rmi", "--prune")
    # With arguments it is the command of that name.
    assert build({"reclaim-images": "podman image prune -f"}).reclaim_images == ("podman", "image", "prune", "-f")
    for value in ("cri", "cri:unix:///run/x.sock"):
        with pytest.raises(ConfigError, match="outrace has no client of CRI any more: write crictl instead of cri"):
            build({"reclaim-images": value})


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


@given(st.sampled_from([s.name for s in SETTINGS]), st.text(max_size=40))
def test_any_text_of_an_option_gives_a_configuration_or_a_clear_error(option: str, text: str) -> None:
    try:
        config = build({option: text})
    except ConfigError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert config.origins[next(s.field for s in SETTINGS if s.name == option)] == f"--{option}"
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
    for bad in ("[]", '{"lisen_port": 1}', "{", '{"parsed": 1}', '{"parsed": [["memory.available"]]}'):
        with pytest.raises(ValueError, match=r"configuration|Expecting"):
            RunConfig.from_json(bad)


def test_thresholds_travel_as_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their text is parsed where it is read, and nowhere after the memfd."""
    texts = "memory.available<1500000Ki,nodefs.available<12.5%,pid.available<1e3"
    soft = {"eviction-soft": "imagefs.available<7%", "eviction-soft-grace-period": "imagefs.available=1m30s"}
    config = build({"eviction-hard": texts, "eviction-minimum-reclaim": "memory.available=5%", **soft})

    def parse(text: str) -> None:
        raise AssertionError(f"{text} is parsed again")

    for module in ("quantity._parse", "thresholds.parse_duration", "thresholds.parse_percentage"):
        monkeypatch.setattr(f"monitor.policy.{module}", parse)
    there = RunConfig.from_json(config.to_json())
    assert (there, there.pass_config()) == (config, config.pass_config())
    shown = [f"{t} {t.min_reclaim}" for t in there.thresholds()]
    assert shown == [f"{t} {t.min_reclaim}" for t in config.thresholds()]
    assert shown[0] == "memory.available<1500000Ki 5%"


@pytest.mark.parametrize("option", [o for o in SETTINGS if o.example is None], ids=lambda o: o.name)
def test_the_default_shown_is_the_default(option: Option) -> None:
    """Others are found at start, depend on the machine, or are nothing: those have an example instead."""
    default = ("127.0.0.1", 9469) if option.name == "listen" else getattr(RunConfig(), option.field)
    assert option.parse(shown_value(option)) == default


MODES = [
    ({}, "observe", False, False, False),
    ({"mode": "observe"}, "observe", False, False, False),
    ({"enforce": True}, "enforce", True, False, False),
    ({"mode": "enforce", "enforce": True}, "enforce", True, False, False),
    ({"mode": "enforce", "hard-grace": "5s"}, "enforce", True, True, False),
    ({"mode": "hold"}, "hold", True, True, False),
    ({"mode": "hold", "never-kill": True}, "hold", False, True, False),
    ({"mode": "hold", "evict-by": "api", "hold-brake": "freeze"}, "hold", False, True, True),
]


@pytest.mark.parametrize(("flags", "mode", "kills", "holds", "asks_api"), MODES)
def test_modes(flags: dict[str, Any], mode: str, kills: bool, holds: bool, asks_api: bool) -> None:
    config = build(flags)
    assert (config.mode, config.kills, config.holds, config.asks_api) == (mode, kills, holds, asks_api)
    assert RunConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"mode": "hold", "enforce": True}, "--mode: hold differs from --enforce (--enforce); give one of them"),
        ({"mode": "enforce", "enforce": False}, "--mode: enforce differs from --no-enforce (--enforce)"),
        ({"never-kill": True}, "--never-kill: nothing is held in mode observe; give --mode hold too"),
        ({"hold-limit": "1m", "enforce": True}, "--hold-limit: nothing is held in mode enforce"),
        ({"hold-brake": "freeze"}, "--hold-brake: nothing is held in mode observe"),
        ({"never-kill": True, "enforce": True, "hard-grace": "5s"}, "--never-kill: nothing is held in mode enforce"),
        ({"mode": "hold", "hold-limit": "0s"}, "--hold-limit: '0s' is not a duration above 0"),
        ({"mode": "hold", "hold-limit": "25h"}, "--hold-limit: '25h' is not a duration above 0"),
        ({"mode": "hold", "trigger": "kernel"}, "--trigger: kernel kills at the crossing"),
        ({"mode": "hold", "hard-grace": "5s"}, "--hard-grace: no pod is killed at a hard threshold in mode hold"),
        ({"enforce": True, "hard-grace": "1500ms"}, "--hard-grace: '1500ms' is not a number of whole seconds"),
        ({"hard-grace": "5s"}, "--hard-grace: no pod is killed at a hard threshold in mode observe"),
        ({"enforce": True, "hard-grace": "5s", "evict-by": "api"}, "--hard-grace: with --evict-by api"),
        ({"enforce": True, "hard-grace": "5s", "trigger": "kernel"}, "--hard-grace: --trigger kernel kills without"),
        ({"enforce": True, "hard-grace": "5s", "hold-brake": "freeze"}, "--hard-grace: a frozen pod cannot use its"),
    ],
)
def test_options_that_the_mode_has_no_use_for(flags: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(flags)
    assert str(caught.value).startswith(expected)


def test_a_mode_in_the_own_file_and_a_flag_that_differs(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("mode: hold\n")
    assert build({}, str(tmp_path / "c.yaml")).hold
    with pytest.raises(ConfigError, match=r"c.yaml: mode: hold differs from --enforce"):
        build({"enforce": True}, str(tmp_path / "c.yaml"))

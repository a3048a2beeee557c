"""`outrace run` refuses bad input with one line and the documented exit code, before it touches the kernel."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.cli.listen import bind
from monitor.cli.main import main
from monitor.cli.options import resolve
from monitor.cli.run import lock
from monitor.errors import InUseError, MonitorError
from monitor.pods.installations import find_kubelet
from monitor.settings.config import RunConfig
from monitor.settings.read import check_enforced
from tests.commands import run as run_command
from tests.live import one_line as refused

ROOT = Path(__file__).resolve().parents[2]
CODE = "import sys; from monitor.cli.main import main; sys.exit(main())"


def run(*arguments: str, root: Path = ROOT, user: int | None = None) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    who = {"user": user, "group": user, "extra_groups": None if user is None else []}
    return run_command(sys.executable, "-c", CODE, "run", *arguments, env=env, cwd="/", **who)


#: What is not refused would start and run: there is no place for its state.
NOWHERE = ("--state-dir", "/dev/null/state")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="outrace run needs root to get this far")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--eviction-hard", "memory.free<1Gi"), "unsupported eviction signal memory.free"),
        (("--eviction-hard", "memory.available<1x"), "--eviction-hard: memory.available: 1x"),
        (("--eviction-hard", "memory.available<1e30"), "--eviction-hard: memory.available: 1e30"),
        (("--kernel-memcg-notification=maybe",), "--kernel-memcg-notification: 'maybe' is not true or false"),
        # The kubelet's own forms are accepted: what is refused is the option after it.
        (("--kernel-memcg-notification", "--step", "0"), "--step: "),
        (("--kernel-memcg-notification=true", "--step", "0"), "--step: "),
        (("--kernel-memcg-notification=FALSE", "--step", "0"), "--step: "),
        (("--eviction-soft", "memory.available<1Gi"), "grace period must be specified"),
        (("--record", "/no/such/directory/file"), "--record"),
        (("--config", "/no/such/file"), "/no/such/file: cannot be read"),
        (("--kubelet-config", "/no/such/file"), "/no/such/file: cannot be read"),
        (("--pods", "manifests:/no/such/dir"), "/no/such/dir is not a directory"),
        (("--pods", "manifests:/", "--enforce", "--evict-by", "api"), "give --pods apiserver or kubelet"),
        ((*NOWHERE, "--pods", "manifests:/", "--evict-by", "api"), "--evict-by api: the pods of --pods manifests:/"),
        ((*NOWHERE, "--pods", "services", "--evict-by", "api"), "or --evict-by kill"),
        (("--pods", "manifests:/", "--node-taints", "own"), "--node-taints own: the pods of --pods manifests:/"),
        (("--node-taints", "all"), "--node-taints"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], expected: str) -> None:
    refused(run(*arguments), 2, expected)


@needs_root
def test_missing_node_cgroup(tmp_path: Path) -> None:
    refused(run("--node-cgroup", "outrace-test-missing", "--state-dir", str(tmp_path / "s")), 2, "outrace-test-missing")
    assert not (tmp_path / "s").exists()  # nothing was touched


@needs_root
def test_not_root() -> None:
    # A copy that everybody may read, because the tree itself may lie where only root gets; the interpreter's modules
    # have to be readable too.
    import tempfile

    with tempfile.TemporaryDirectory() as copy:
        os.chmod(copy, 0o755)
        shutil.copytree(ROOT / "monitor", Path(copy) / "monitor", ignore=shutil.ignore_patterns("__pycache__", "_bpf"))
        probe = subprocess.run([sys.executable, "-c", "import click"], user=65534, capture_output=True, check=False)
        if probe.returncode != 0:
            pytest.skip("user 65534 cannot read this Python's modules")
        refused(run(root=Path(copy), user=65534), 3, "must be root", "sudo")


@needs_root
def test_second_daemon_on_one_state_dir(tmp_path: Path) -> None:
    held = lock(tmp_path)
    try:
        refused(run("--state-dir", str(tmp_path)), 1, f"pid {os.getpid()}", str(tmp_path), "--state-dir")
    finally:
        os.close(held)
    with open(tmp_path / "lock", "rb") as file:  # given back with the descriptor
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(InUseError) as refusal:
        bind(*other.getsockname())
    assert "Address already in use" in str(refusal.value)
    assert f"(pid {os.getpid()}), or name another" in str(refusal.value)


@needs_root
def test_listen_address_of_another_machine(tmp_path: Path) -> None:
    # 192.0.2.0/24 is reserved for documentation (RFC 5737): nobody has it.
    refused(run("--state-dir", str(tmp_path), "--listen", "192.0.2.1:9469"), 1, "Cannot assign requested address")


@needs_root
def test_state_dir_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(run("--state-dir", str(tmp_path / "file")), 1, str(tmp_path / "file"), "--state-dir")


@needs_root
@pytest.mark.parametrize(
    ("user", "mode", "expected"),
    [
        (65534, 0o755, ("belongs to user 65534; chown root ",)),
        (0, 0o775, ("(mode 775) can be written by others; chmod go-w ",)),
        (0, 0o757, ("(mode 757)", "--state-dir")),
        (0, 0o1777, ("(mode 1777)",)),
    ],
)
def test_state_dir_that_others_may_write_in(tmp_path: Path, user: int, mode: int, expected: tuple[str, ...]) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    os.chown(state, user, -1)
    refused(run("--state-dir", str(state), "--listen", "192.0.2.1:9469"), 1, f"state directory {state} ", *expected)
    assert list(state.iterdir()) == []


@needs_root
def test_a_lock_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("important")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "lock").symlink_to(precious)
    refused(run("--state-dir", str(state)), 1, f"{state}/lock is a symbolic link; remove it")
    assert precious.read_text() == "important"


def test_a_state_dir_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    os.close(lock(tmp_path / "link"))
    assert (tmp_path / "real" / "lock").read_text() == f"{os.getpid()}\n"


@needs_root
def test_what_the_api_server_would_evict_needs_credentials_of_one_while_observing_too() -> None:
    """It started, and only the start with --enforce was refused."""
    if find_kubelet().kubeconfig is not None:
        pytest.skip("the kubelet of this machine has credentials")
    given = (*NOWHERE, "--pods", "kubelet:http://127.0.0.1:9")
    refused(run(*given, "--evict-by", "api"), 2, "no credentials for an API server", "give --kubeconfig FILE")
    refused(run(*given), 1, "/dev/null/state")


def test_nobody_is_evicted_on_guesses(tmp_path: Path) -> None:
    """Without specs no priority is known: `run --enforce` began to evict, the most important pod first. Always with
    ``--pods``: on a node of a cluster auto is its pods, and this a test that evicts them.
    """
    expected = (
        "--enforce: with --pods cgroups no pod's spec is known",
        "--pods manifests:DIR",
        "--enforce-unknown-specs",
    )
    refused(run("--enforce", "--pods", "cgroups"), 2, *expected)
    refused(run("--enforce", "--pods", "cgroups", "--no-enforce-unknown-specs"), 2, *expected)
    own = tmp_path / "outrace.yaml"
    own.write_text("enforce: true\npods: cgroups\n")
    refused(run("--config", str(own)), 2, f"{own}: enforce: with --pods cgroups")


@pytest.mark.parametrize(
    "options",
    [("--enforce-unknown-specs",), ("--pods", "manifests:/"), ("--pods", "services"), ("--no-enforce",)],
    ids=lambda o: o[-1],
)
def test_who_allows_it_or_names_the_specs_is_let_through(options: tuple[str, ...]) -> None:
    config = resolve({"enforce": True, **_flags(options)}).config
    check_enforced(config)


def _flags(options: tuple[str, ...]) -> dict[str, object]:
    name = options[0].removeprefix("--no-").removeprefix("--").replace("-", "_")
    return {name: options[1] if len(options) > 1 else not options[0].startswith("--no-")}


@pytest.mark.parametrize(
    ("forms", "value"),
    [
        ((), None),
        (("--kernel-memcg-notification",), True),
        (("--kernel-memcg-notification", "--enforce"), True),
        (("--kernel-memcg-notification=true",), True),
        (("--kernel-memcg-notification=1",), True),
        (("--kernel-memcg-notification=false",), False),
    ],
)
def test_kubelets_own_forms_of_a_flag(
    forms: tuple[str, ...], value: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[RunConfig] = []
    monkeypatch.setattr("monitor.cli.run.start", lambda config, _: started.append(config))
    assert main(["run", *forms]) == 0
    [config] = started
    assert config.kernel_memcg_notification is bool(value)
    origin = "default" if value is None else "--kernel-memcg-notification"
    assert config.origins["kernel_memcg_notification"] == origin


def test_the_environment_stands_between_the_flags_and_the_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("step: 2Mi\nhooks: psi\neviction-hard: {memory.available: 2Gi}\n")
    started: list[RunConfig] = []
    monkeypatch.setattr("monitor.cli.run.start", lambda config, _: started.append(config))
    for name, value in {
        "CONFIG": str(own),
        "ENFORCE": "true",
        "EVICTION_HARD": "memory.available<1Gi",
        "EVICTION_MAX_POD_GRACE_PERIOD": "7",
        "LOCAL_STORAGE_CAPACITY_ISOLATION": "false",
        "WEBHOOK": "http://a/ http://b/",
        "STEP": "4Mi",
        "STATE_DIR": "",
    }.items():
        monkeypatch.setenv(f"OUTRACE_{name}", value)
    assert main(["run", "--step", "8Mi"]) == 0
    [config] = started
    assert (config.step, config.origins["step"]) == (8 << 20, "--step")
    assert (config.hooks, config.origins["hooks"]) == ("psi", f"{own}: hooks")
    assert (config.enforce, config.local_storage, config.eviction_max_pod_grace_period_s) == (True, False, 7)
    assert config.eviction_hard == {"memory.available": "1Gi"}
    assert config.origins["eviction_hard"] == "OUTRACE_EVICTION_HARD"
    assert config.webhooks == ("http://a/", "http://b/")
    assert config.state_dir == "/var/lib/outrace"  # an empty one is not given


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("EVICTION_HARD", "memory.available<1x", "OUTRACE_EVICTION_HARD: memory.available: 1x: "),
        ("ENFORCE", "perhaps", "'perhaps' is not a valid boolean"),
        ("POLICY", "kubelet-9", "OUTRACE_POLICY: 'kubelet-9' is not one of"),
    ],
)
def test_a_wrong_variable_is_named(
    name: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"OUTRACE_{name}", value)
    assert main(["run"]) == 2
    assert expected in capsys.readouterr().err


def test_lock_and_bind_errors_name_who_and_where(tmp_path: Path) -> None:
    first = lock(tmp_path / "new" / "dir")
    try:
        with pytest.raises(MonitorError, match=rf"pid {os.getpid()}\) is running"):
            lock(tmp_path / "new" / "dir")
    finally:
        os.close(first)
    with bind("127.0.0.1", 0) as listener, pytest.raises(MonitorError, match="in use"):
        bind("127.0.0.1", listener.getsockname()[1])


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_bind_to_an_ipv6_address() -> None:
    with bind("::1", 0) as listener:
        assert listener.family is socket.AF_INET6

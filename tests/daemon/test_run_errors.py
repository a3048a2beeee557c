"""`outrace run` refuses bad input with one line and the documented exit code, before it touches the kernel."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.main import main
from monitor.cli.run import bind, lock
from monitor.errors import ConfigError, InUseError, MonitorError
from monitor.settings.config import RunConfig
from monitor.settings.options import GONE_OPTIONS, variable_of
from monitor.settings.read import check_enforced
from tests.commands import called
from tests.commands import run as run_command
from tests.daemon.config_files import build, write
from tests.live import CLI, ROOT
from tests.live import one_line as refused

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot make files of another user")


# The command itself.
def run(*arguments: str, root: Path = ROOT, user: int | None = None) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    of_user = {"user": user, "group": user, "extra_groups": None if user is None else []}
    return run_command(sys.executable, "-c", CLI, "run", *arguments, env=env, cwd="/", **of_user)


#: What is not refused would start and run: there is no place for its state.
NOWHERE = ("--state-dir", "/dev/null/state")


@pytest.mark.kernel
@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--enforce", "--pods", "cgroups"), "with --pods cgroups no pod's spec is known"),
        (("--node-cgroup", "outrace-test-missing"), "outrace-test-missing"),
    ],
)
def test_a_start_is_refused(arguments: tuple[str, ...], expected: str) -> None:
    refused(run(*NOWHERE, *arguments), 2, expected)


@needs_root
def test_not_root() -> None:
    """From a copy that every user may read, because the tree itself may lie where only root gets."""
    with tempfile.TemporaryDirectory() as copy:
        os.chmod(copy, 0o755)
        shutil.copytree(ROOT / "monitor", Path(copy) / "monitor", ignore=shutil.ignore_patterns("__pycache__", "_bpf"))
        probe = subprocess.run([sys.executable, "-c", "import click"], user=65534, capture_output=True, check=False)
        if probe.returncode != 0:
            pytest.skip("user 65534 cannot read this Python's modules")
        refused(run(root=Path(copy), user=65534), 3, "must be root", "sudo")


# Its command line and environment, read in this process.
@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RunConfig]]:
    """What would have been started; nothing is, and nothing that another process left is undone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    found: list[RunConfig] = []
    monkeypatch.setattr("monitor.cli.run.start", lambda config, _: found.append(config))
    monkeypatch.setattr("monitor.cli.run._undo_left", lambda *_args, **_: None)
    yield found
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize(
    ("forms", "value"),
    [
        ((), None),
        (("--kernel-memcg-notification",), True),
        (("--kernel-memcg-notification", "--enforce"), True),
        (("--kernel-memcg-notification=true",), True),
        (("--kernel-memcg-notification=1",), True),
        (("--kernel-memcg-notification=t",), True),
        (("--kernel-memcg-notification=FALSE",), False),
    ],
)
def test_kubelets_own_forms_of_a_flag(forms: tuple[str, ...], value: bool | None, started: list[RunConfig]) -> None:
    assert main(["run", *forms]) == 0
    [config] = started
    assert config.kernel_memcg_notification is bool(value)
    origin = "default" if value is None else "--kernel-memcg-notification"
    assert config.origins["kernel_memcg_notification"] == origin


def test_the_environment_stands_between_the_flags_and_the_own_file(
    tmp_path: Path, started: list[RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write(tmp_path, "own.yaml", "node-name: of-the-file\nhooks: poll\neviction-hard: {memory.available: 2Gi}\n")
    for name, value in {
        "CONFIG": own,
        "ENFORCE": "true",
        "EVICTION_HARD": "memory.available<1Gi",
        "EVICTION_MAX_POD_GRACE_PERIOD": "7",
        "KERNEL_MEMCG_NOTIFICATION": "true",
        "ALERTMANAGER": "http://a/ http://b/",
        "NODE_NAME": "of-the-environment",
        "STATE_DIR": "",
    }.items():
        monkeypatch.setenv(f"OUTRACE_{name}", value)
    assert main(["run", "--node-name", "of-the-flag"]) == 0
    [config] = started
    assert (config.node_name, config.origins["node_name"]) == ("of-the-flag", "--node-name")
    assert (config.hooks, config.origins["hooks"]) == ("poll", f"{own}: hooks")
    assert (config.enforce, config.kernel_memcg_notification) == (True, True)
    assert config.eviction_max_pod_grace_period_s == 7
    assert config.eviction_hard == {"memory.available": "1Gi"}
    assert config.origins["eviction_hard"] == "OUTRACE_EVICTION_HARD"
    assert config.alertmanagers == ("http://a", "http://b")
    assert config.state_dir == "/var/lib/outrace"  # an empty one is not given
    for name, value, problem in (
        ("POLICY", "kubelet-9", "OUTRACE_POLICY: 'kubelet-9' is not one of"),
        ("ENFORCE", "perhaps", "'perhaps' is not a valid boolean"),
    ):
        monkeypatch.setenv(f"OUTRACE_{name}", value)
        refused(called("run"), 2, problem)


# What may be enforced, and by which API server.
UNKNOWN = "enforce: with --pods cgroups no pod's spec is known: "
CGROUPS = {"enforce": True, "pods": "cgroups"}


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (CGROUPS, f"--{UNKNOWN}"),
        ({**CGROUPS, "enforce": False}, ""),
        ({"enforce": True, "pods": "manifests:/"}, ""),
        ({"enforce": True, "pods": "services"}, ""),
        ({"enforce": True, "pods": "manifests:/", "evict-by": "api"}, "--evict-by api: the pods of --pods manifests:/"),
        ({"pods": "services", "evict-by": "api"}, "--evict-by api: the pods of --pods services are none"),
        ({"pods": "manifests:/", "node-taints": "own"}, "--node-taints own: the pods of --pods manifests:/ are none"),
    ],
)
def test_nobody_is_evicted_on_guesses(flags: dict[str, Any], problem: str) -> None:
    """Without specs no priority is known: `run --enforce` began to evict, the most important pod first."""
    config = build(flags)
    if not problem:
        check_enforced(config)
        return
    with pytest.raises(ConfigError) as caught:
        check_enforced(config)
    assert str(caught.value).startswith(problem)
    assert "give --pods apiserver or kubelet" in str(caught.value) or "--pods manifests:DIR" in str(caught.value)


def test_a_refusal_names_the_file_that_enforces(tmp_path: Path) -> None:
    own = write(tmp_path, "outrace.yaml", "enforce: true\npods: cgroups\n")
    with pytest.raises(ConfigError, match=f"^{own}: {UNKNOWN}"):
        check_enforced(build({}, own))


# The state directory, its lock, and the address.
def no_lock(state: Path) -> str:
    with pytest.raises(MonitorError) as refusal:
        lock(state)
    assert refusal.value.exit_code == 1
    return str(refusal.value)


@needs_root
@pytest.mark.parametrize(
    ("user", "mode", "expected"),
    [
        (65534, 0o755, "belongs to user 65534; chown root "),
        (0, 0o775, "(mode 775) can be written by others; chmod go-w "),
        (0, 0o757, "(mode 757) can be written by others"),
        (0, 0o1777, "(mode 1777)"),
    ],
)
def test_state_dir_that_others_may_write_in(tmp_path: Path, user: int, mode: int, expected: str) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    os.chown(state, user, -1)
    problem = no_lock(state)
    assert problem.startswith(f"state directory {state} {expected}")
    assert "--state-dir" in problem
    assert list(state.iterdir()) == []


def test_state_dir_that_is_a_file_and_a_lock_that_leads_elsewhere(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("important")
    assert f"state directory {precious}: " in no_lock(precious)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "lock").symlink_to(precious)
    assert f"{state}/lock is a symbolic link; remove it" in no_lock(state)
    assert precious.read_text() == "important"


def test_a_lock_is_of_one_and_given_back_with_its_descriptor(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("new")  # a state dir may be a link
    (tmp_path / "new").mkdir(mode=0o700)
    first = lock(tmp_path / "link" / "dir")
    state = tmp_path / "new" / "dir"
    try:
        assert f"(pid {os.getpid()}) is running on state directory {state}" in no_lock(state)
        assert (state / "lock").read_text().strip() == str(os.getpid())
    finally:
        os.close(first)
    with open(state / "lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(InUseError, match="; stop what has it"):
        bind(*other.getsockname())


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_bind_to_an_ipv6_address() -> None:
    with bind("::1", 0) as listener:
        assert listener.family is socket.AF_INET6


@pytest.mark.parametrize("name", GONE_OPTIONS)
def test_what_is_gone_names_its_replacement(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = write(tmp_path, "outrace.yaml", f"{name}: x\n")
    for arguments in (["run", f"--{name}", "x"], ["explain", f"--no-{name}"], ["run", "--config", own]):
        if arguments[1] != "--no-daemon":  # that one stays
            refused(called(*arguments), 2, f"{name} is gone: {GONE_OPTIONS[name]}")
    if name != "run-dir":
        monkeypatch.setenv(variable_of(name), "x")
        refused(called("config", "check"), 2, f"{name} is gone: {GONE_OPTIONS[name]}")

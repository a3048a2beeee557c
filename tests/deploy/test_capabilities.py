"""The capabilities of the DaemonSet: enough to evict, and each of them missed when it is not there."""

import json
import subprocess
from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest
import yaml

from monitor.kernel import sched
from monitor.kernel.sched import OOM_SCORE_ADJ
from tests import live
from tests.daemon.hot_node import evicted, hard, hot_node

pytestmark = [pytest.mark.kernel, pytest.mark.once]
KUBERNETES = Path(__file__).parents[2] / "deploy/kubernetes"
(CONTAINER,) = yaml.safe_load((KUBERNETES / "base/daemonset.yaml").read_text())["spec"]["template"]["spec"][
    "containers"
]
OBSERVES: tuple[str, ...] = tuple(CONTAINER["securityContext"]["capabilities"]["add"])
PATCH = yaml.safe_load((KUBERNETES / "overlays/enforce/kustomization.yaml").read_text())["patches"][0]["patch"]
#: What the overlay adds.
ACTS = tuple(step["value"] for step in yaml.safe_load(PATCH) if step["path"].endswith("/capabilities/add/-"))
ADDED = (*OBSERVES, *ACTS)
#: What `outrace doctor` shows of each when it is missing: a check of this name is not ok any more.
CHECKS = {
    "SYS_ADMIN": "CAP_BPF",
    "SYS_NICE": "sched_fifo",
    "IPC_LOCK": "CAP_IPC_LOCK",
    "KILL": "CAP_KILL",
    "SYS_RESOURCE": "CAP_SYS_RESOURCE",
    "SYS_PTRACE": "CAP_SYS_PTRACE",
    "NET_ADMIN": "CAP_NET_ADMIN",
}


@cache
def held() -> Collection[str]:
    """Those that this machine may give away; a sandbox may lack some itself."""
    status = Path("/proc/self/status").read_text()
    mask = int(status.partition("\nCapBnd:")[2].split()[0], 16)
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    names = subprocess.run(["setpriv", "--list-caps"], capture_output=True, text=True, check=True).stdout.split()
    return {name.upper() for number, name in enumerate(names) if number <= last and mask >> number & 1}


def only(*names: str) -> tuple[str, ...]:
    """A command that runs another as root with these capabilities."""
    given = [f"+{name.lower()}" for name in names if name in held()]
    return ("setpriv", f"--bounding-set=-all,{','.join(given)}", "--inh-caps=-all", "--")


@cache
def failed(*names: str) -> set[str]:
    """The checks of `outrace doctor` that are not ok."""
    done = live.outrace("doctor", "-o", "json", wrapper=only(*names))
    return {check["name"] for check in json.loads(done.stdout)["checks"] if not check["ok"]}


def test_every_capability_has_a_test() -> None:
    assert set(ADDED) == {*CHECKS, "DAC_READ_SEARCH", "DAC_OVERRIDE"}


@pytest.mark.parametrize("name", CHECKS)
def test_without_one_of_them_the_doctor_misses_it(name: str) -> None:
    if name not in held():
        pytest.skip(f"this machine has no CAP_{name} to take away")
    others = [one for one in ADDED if one != name]
    assert CHECKS[name] in failed(*others)
    assert CHECKS[name] not in failed(*ADDED)


def test_observing_takes_none_of_those_that_act() -> None:
    """The decision is made in time, for a pod of another user too, and no line complains about what is missing."""
    assert set(ACTS) == {"KILL", "SYS_RESOURCE", "DAC_OVERRIDE"}
    assert not set(OBSERVES) & set(ACTS)
    with hot_node() as node, live.daemon(node, *hard(24), wrapper=only(*OBSERVES)) as daemon:
        granted = int(Path(f"/proc/{daemon.pid}/status").read_text().partition("\nCapEff:")[2].split()[0], 16)
        assert not granted & (1 << 5 | 1 << 24 | 1 << 1)
        pod = node.add_pod("hog")
        hog = node.start_hog(pod, mib=112, rate=50)
        hog.go()
        live.message(daemon, "would evict", pod=f"{pod.namespace}/{pod.name}")
        assert hog.process.poll() is None
        said = [json.dumps(record) for record in daemon.log if record.get("level") in ("error", "warning")]
        assert not [line for line in said if "CAP_KILL" in line or "EACCES" in line]
    assert node.oom_kills() == 0


def test_a_daemonset_is_protected_by_its_kubelet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The container's runtime gave it -997, and without SYS_RESOURCE it stays: no line says that it may be chosen."""

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", refuse)
        patch.setattr(Path, "read_text", lambda _: "-997\n")
        found = sched.set_oom_score_adj()
    assert found == (-997, "")


def test_with_them_a_pod_is_evicted_in_time() -> None:
    """All of it but /dev/kmsg, which a container does not have either."""
    with hot_node() as node, live.daemon(node, "--enforce", *hard(24), wrapper=only(*ADDED)) as daemon:
        pod = node.add_pod("hog")
        hog = node.start_hog(pod, mib=112, rate=50)
        hog.go()
        evicted(daemon, pod)
        assert not [record for record in daemon.log if record.get("level") == "error"]
        if "SYS_RESOURCE" in held():
            assert Path(f"/proc/{daemon.pid}/oom_score_adj").read_text() == f"{OOM_SCORE_ADJ}\n"
    assert node.oom_kills() == 0

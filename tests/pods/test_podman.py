"""The distribution's podman, with an image made here: what its API and its cgroups say of containers and pods."""

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.model import Within
from monitor.pods.runtimes import Runtimes
from monitor.pods.services import ServiceSource
from monitor.policy.pods import Pod
from monitor.policy.resources import pod_request
from tests import live
from tests.pods.unit_tree import pods
from tests.puppet import cgroup

pytestmark = [pytest.mark.live, pytest.mark.once]
MI = 1 << 20
PROGRAM = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
#: Of Debian; podman needs a runtime that knows this machine's cgroups, and the pause of its pods.
NEEDED = {"podman": "podman", "runc": "runc", "catatonit": "catatonit", "cc": "gcc"}
Node = tuple[Hierarchy, Path]
Podman = tuple[Callable[..., str], Path]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    if missing := [package for program, package in NEEDED.items() if not shutil.which(program, path=PATH)]:
        pytest.skip(f"apt-get install --no-install-recommends {' '.join(missing)}")
    hierarchy = cgroupfs.detect()
    with cgroup("podman") as path:
        yield hierarchy, path
    for root in hierarchy.root.parent.glob("*/"):  # the other controllers' trees of cgroup v1
        for directory in sorted((root / path.name).glob("**/"), reverse=True):
            directory.rmdir()


PATH = f"{os.environ['PATH']}:/usr/libexec/podman"


@pytest.fixture(scope="module")
def podman(node: Node) -> Iterator[Podman]:
    """What runs podman with a store of its own, in which the image `lab` is; and its socket."""
    base = Path(tempfile.mkdtemp(prefix="p"))  # podman takes no runroot of more than 50 characters
    conf = base / "containers.conf"
    # What it asks for by itself, 2^20 descriptors, takes CAP_SYS_RESOURCE.
    conf.write_text('[containers]\ndefault_ulimits=["nofile=1024:1024", "nproc=1024:1024"]\n')
    options = ["--root", str(base / "s"), "--runroot", str(base / "r"), "--storage-driver", "vfs", "--runtime", "runc"]
    command = ["podman", *options, "--cgroup-manager", "cgroupfs", "--events-backend", "file"]

    def run(*arguments: str, within: Sequence[Path] = ()) -> str:
        """``within``: the directories of the cgroup to do it from."""
        enter = ["sh", "-ec", 'for i in $0; do echo 0 > "$i/cgroup.procs"; done; exec "$@"', " ".join(map(str, within))]
        done = subprocess.run(
            [*(enter if within else ()), *command, *arguments],
            env={**os.environ, "CONTAINERS_CONF": str(conf)},
            capture_output=True,
            text=True,
            timeout=live.TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    subprocess.run(["cc", "-static", "-x", "c", "-", "-o", base / "pause"], input=PROGRAM, text=True, check=True)
    with tarfile.open(base / "lab.tar", "w") as tar:
        tar.add(base / "pause", "pause")
    run("import", str(base / "lab.tar"), "lab")
    service = subprocess.Popen(
        [*command, "system", "service", "-t", "0", f"unix://{base / 'podman.sock'}"], stderr=subprocess.DEVNULL
    )
    try:
        live.until((base / "podman.sock").exists, "podman's socket")
        yield run, base / "podman.sock"
    finally:
        run("pod", "rm", "-af", "-t", "0")
        run("rm", "-af", "-t", "0")
        service.terminate()
        service.wait(live.TIMEOUT_S)


def everywhere(hierarchy: Hierarchy, unit: Path) -> list[Path]:
    """Makes a cgroup in every hierarchy, as systemd does; its directories."""
    cgroupfs.make(unit)
    if hierarchy.version == 2:
        return [unit]
    found = []
    for root in sorted(hierarchy.root.parent.glob("*/")):
        path = root
        for part in unit.relative_to(hierarchy.root).parts:
            above, path = path, path / part
            path.mkdir(exist_ok=True)
            for file in {"cpuset.cpus", "cpuset.mems"} & set(os.listdir(path)):  # no process enters it without
                (path / file).write_text((above / file).read_text())
        found.append(path)
    return found


def settling(hierarchy: Hierarchy, path: Path, sock: Path, wanted: set[str], rules: Any = None) -> dict[str, Pod]:
    """The pods, once these are there: podman returns before the runtime's child has become the container's program."""
    runtimes = Runtimes({"podman": str(sock)})
    with closing(ServiceSource(16 << 30, Within(hierarchy, path), rules, runtimes)) as source:

        def settled() -> bool:
            source.poll()
            found = pods(source)
            return wanted <= found.keys() and not any("started" in pod.taken_critical for pod in found.values())

        live.until(settled, "the containers' own programs")
        assert source.problems == ()
        return pods(source)


def test_podmans_containers_and_pods(node: Node, podman: Podman) -> None:
    hierarchy, path = node
    call, sock = podman
    parent = f"--cgroup-parent=/{path.name}/libpod_parent"
    limits = ("--memory=64m", "--memory-reservation=32m")
    run = ("run", "-d", "--network=host")
    web = call(*run, "--name=web", parent, *limits, "--label=outrace/priority=5", "lab", "/pause")
    call(*run, "--name=kept", parent, "--oom-score-adj=300", "--label=outrace/never=true", "lab", "/pause")
    shop = call("pod", "create", "--name=shop", "--network=host", parent, "--label=outrace/priority=7")
    call("run", "-d", "--pod=shop", "--name=cart", *limits, "lab", "/pause")
    settled = {"podman/web", "podman/kept", "podman/shop"}
    found = settling(hierarchy, path, sock, settled)
    assert (found["podman/web"].uid, found["podman/web"].priority) == (web, 5)
    assert found["podman/web"].taken_critical == ""
    assert pod_request(found["podman/web"], "memory").value == 32 * MI
    assert (found["podman/kept"].priority, found["podman/kept"].taken_critical) == (-300, "label outrace/never")
    assert (found["podman/shop"].uid, found["podman/shop"].priority) == (shop, 7)
    assert found["podman/shop"].taken_critical == ""
    assert pod_request(found["podman/shop"], "memory").value == 32 * MI
    assert found["podman/shop"].containers[0].limits["memory"].value == 64 * MI  # without that of the infra container
    others = found.keys() - settled
    assert {found[name].taken_critical for name in others} == {"it watches a container of a runtime"}


def test_a_container_within_the_unit_that_started_it(node: Node, podman: Podman) -> None:
    """``--cgroups=split``, as Quadlet asks for: the unit is the pod, and has the container's labels."""
    hierarchy, path = node
    call, sock = podman
    unit = everywhere(hierarchy, path / "system.slice/web.service")
    run = ("run", "-d", "--network=host", "--cgroups=split", "--name=systemd-web", "--memory=64m")
    web = call(*run, "--label=outrace/priority=5", "lab", "/pause", within=unit)
    assert (path / f"system.slice/web.service/libpod-payload-{web}").exists()
    try:
        rules = {"podman/systemd-web": {"request": 16 * MI}}
        pod = settling(hierarchy, path, sock, {"system/web.service"}, rules)["system/web.service"]
    finally:
        call("rm", "-f", "-t", "0", "systemd-web")
    assert (pod.name, pod.priority) == ("web.service", 5)
    assert pod_request(pod, "memory").value == 16 * MI
    assert pod.containers[0].limits["memory"].value == 64 * MI

"""The distribution's podman, with an image made here: what its API and its cgroups say of containers and pods."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
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
from tests.runtimes import images
from tests.runtimes import podman as runtime
from tests.runtimes.conftest import pause as pause
from tests.runtimes.podman import Podman

pytestmark = [pytest.mark.live, pytest.mark.once]
MI = 1 << 20
LAB = "localhost/lab:1"


@pytest.fixture(scope="module")
def podman(pause: Path) -> Iterator[Podman]:
    """With the image `lab`, and a service at `podman.sock` in its directory."""
    runtime.check()
    with (
        tempfile.TemporaryDirectory(prefix="p") as directory,  # podman takes no runroot of more than 50 characters
        runtime.parent_cgroup() as parent,
        pytest.MonkeyPatch.context() as environment,
        Podman(Path(directory), Path(directory, "r"), parent, environment, driver="vfs") as made,
    ):
        made.load(images.archive(made.base / "lab.tar", LAB, pause))
        socket = made.base / "podman.sock"
        command = ("podman", "system", "service", "-t", "0", f"unix://{socket}")
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as service:
            live.until(socket.exists, "podman's socket")
            yield made
            made.clear()
            service.terminate()


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


def settling(path: Path, podman: Podman, wanted: set[str], rules: Any = None) -> dict[str, Pod]:
    """The pods, once these are there: podman returns before the runtime's child has become the container's program."""
    runtimes = Runtimes({"podman": str(podman.base / "podman.sock")})
    with closing(ServiceSource(16 << 30, Within(cgroupfs.detect(), path), rules, runtimes)) as source:

        def settled() -> bool:
            source.poll()
            found = pods(source)
            return wanted <= found.keys() and not any("started" in pod.taken_critical for pod in found.values())

        live.until(settled, "the containers' own programs")
        assert source.problems == ()
        return pods(source)


def test_podmans_containers_and_pods(podman: Podman) -> None:
    parent = f"--cgroup-parent={podman.parent}/libpod_parent"
    limits = ("--memory=64m", "--memory-reservation=32m")
    run = ("run", "-d", "--network=host")
    podman(*run, "--name=web", parent, *limits, "--label=outrace/priority=5", LAB)
    podman(*run, "--name=kept", parent, "--oom-score-adj=300", "--label=outrace/never=true", LAB)
    podman("pod", "create", "--name=shop", "--network=host", parent, "--label=outrace/priority=7")
    podman("run", "-d", "--pod=shop", "--name=cart", *limits, LAB)
    settled = {"podman/web", "podman/kept", "podman/shop"}
    found = settling(cgroupfs.detect().root / podman.parent[1:], podman, settled)
    assert found["podman/web"].priority == 5
    assert found["podman/web"].taken_critical == ""
    assert pod_request(found["podman/web"], "memory").value == 32 * MI
    assert (found["podman/kept"].priority, found["podman/kept"].taken_critical) == (-300, "label outrace/never")
    assert found["podman/shop"].priority == 7
    assert found["podman/shop"].taken_critical == ""
    assert pod_request(found["podman/shop"], "memory").value == 32 * MI
    assert found["podman/shop"].containers[0].limits["memory"].value == 64 * MI  # without that of the infra container
    others = found.keys() - settled
    assert {found[name].taken_critical for name in others} == {"it watches a container of a runtime"}


def test_a_container_within_the_unit_that_started_it(podman: Podman) -> None:
    """``--cgroups=split``, as Quadlet asks for: the unit is the pod, and has the container's labels."""
    hierarchy = cgroupfs.detect()
    path = hierarchy.root / podman.parent[1:]
    unit = everywhere(hierarchy, path / "system.slice/web.service")
    run = ("run", "-d", "--network=host", "--cgroups=split", "--name=systemd-web", "--memory=64m")
    web = podman(*run, "--label=outrace/priority=5", LAB, within=unit)
    assert (path / f"system.slice/web.service/libpod-payload-{web}").exists()
    try:
        rules = {"podman/systemd-web": {"request": 16 * MI}}
        pod = settling(path, podman, {"system/web.service"}, rules)["system/web.service"]
    finally:
        podman("rm", "-f", "-t", "0", "systemd-web")
    assert (pod.name, pod.priority) == ("web.service", 5)
    assert pod_request(pod, "memory").value == 16 * MI
    assert pod.containers[0].limits["memory"].value == 64 * MI

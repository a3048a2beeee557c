"""`outrace config show|check|translate` as commands: real files, real file systems, real exit codes."""

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from monitor.cli import top_frame
from monitor.cli.config import check, show
from monitor.cli.run import run
from monitor.errors import CannotError
from monitor.kernel import disks, meminfo
from monitor.settings.config import RunConfig
from monitor.settings.options import KEY, OWN_KEY, SETTINGS
from tests import live
from tests.commands import called
from tests.daemon.config_files import KUBELET, write
from tests.filesystems import Mounts


def output_of(*arguments: str) -> tuple[int, str, str]:
    done = called("config", *arguments)
    return done.returncode, done.stdout, done.stderr


def shown(*arguments: str) -> dict[str, Any]:
    code, out, err = output_of("show", "-o", "json", *arguments)
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert list(data) == ["thresholds", "settings", "warnings"]
    return data


def test_the_commands_read_what_run_reads() -> None:
    names = {parameter.name for parameter in run.params}
    for command, more in ((show, {"no_daemon"}), (check, set())):
        assert {parameter.name for parameter in command.params} == names | {"output"} | more
    options = {s.name.replace("-", "_") for s in SETTINGS if s.kind not in (OWN_KEY, KEY)}
    assert options == names - {"config", "kubelet_config"}


def test_origins_and_warnings(tmp_path: Path) -> None:
    hard = "evictionHard: {memory.available: 5%, pid.available: '100'}\nsystemReserved: {memory: 1Gi, cpu: '1'}\n"
    soft = "evictionSoft: {memory.available: 3%}\nevictionSoftGracePeriod: {memory.available: 90s}\n"
    reclaim = "evictionMinimumReclaim: {memory.available: 64Mi}\n"
    main_file = write(tmp_path, "kubelet.yaml", KUBELET + hard + soft + reclaim)
    files = ("--kubelet-config", main_file)
    data = shown(*files, "--pods", "cgroups", "--eviction-max-pod-grace-period", "-1")
    rows = {(t["signal"].partition(".")[0], t["kind"]): t for t in data["thresholds"]}
    assert list(rows) == [("memory", "hard"), ("memory", "soft"), ("allocatableMemory", "hard"), ("pid", "hard")]
    copy, pid = rows["allocatableMemory", "hard"], rows["pid", "hard"]
    assert copy["capacity"] == meminfo.mem_total() - (1 << 30)
    assert (pid["quantity"], pid["capacity"]) == (100, disks.pid_counts()[0])
    starts = (
        *(f"{main_file}: evictionHard: naming any", f"{main_file}: evictionSoft: memory.available: the soft"),
        "--eviction-max-pod-grace-period: -1",
    )
    assert all(line.startswith(start) for line, start in zip(data["warnings"], starts, strict=True))

    # The same as text, and the same warnings from `check`.
    code, out, err = output_of("show", *files)
    assert (code, err) == (0, "")
    assert f"{main_file}: evictionHard" in out.splitlines()[1]
    assert out.splitlines()[2].split()[:3] == ["memory.available", "soft", "3%"]
    code, out, err = output_of("check", *files, "--pods", "cgroups")
    assert (code, err) == (4, "")
    *others, grace = [line.removeprefix("warning: ") for line in out.splitlines()]
    assert others == data["warnings"][:-1]
    assert grace.startswith(f"{main_file}: evictionSoft: the maximum pod grace is 0")


def test_huge_pages_are_in_the_capacity_before_1_37_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    total, huge = meminfo.mem_total(), 256 << 20
    monkeypatch.setattr(meminfo, "huge_pages", lambda _: huge)
    for policy, capacity, warned in (("kubelet-1.37", total - huge, False), ("kubelet-1.36", total, True)):
        data = shown("--policy", policy, "--pods", "cgroups")
        rows = {row["signal"]: row["capacity"] for row in data["thresholds"]}
        assert (rows["memory.available"], rows["allocatableMemory.available"]) == (capacity, total)
        warnings = [w for w in data["warnings"] if f"under {policy} huge pages count as available, here 256Mi" in w]
        assert len(warnings) == warned
        with closing(top_frame.Node(RunConfig(policy=policy, pods="cgroups"))) as node:
            assert (node.capacity, node.whole) == (capacity, total)


def test_commands_that_clean_up(tmp_path: Path) -> None:
    enforced = ("--enforce", "--pods", f"manifests:{tmp_path}")
    code, out, _ = output_of("check", "--reclaim-images", "no-such-command-here --prune", *enforced)
    assert (code, out.count("\n")) == (4, 1)
    assert "no-such-command-here: no such command here" in out
    assert output_of("check", "--reclaim-images", "true", *enforced)[0] == 0
    assert "takes effect with --enforce" in output_of("check", "--reclaim-images", "true")[1]


def test_where_services_are_pods_no_disk_evicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A threshold that nothing acts on is not shown as one in force, and a warning names it."""
    data = shown("--pods", "services")
    assert ([row["signal"] for row in data["thresholds"]], data["warnings"]) == (["memory.available"], [])
    hard = "memory.available<300Mi,nodefs.available<10%,imagefs.available<0%,containerfs.available<9%,pid.available<9"
    data = shown("--pods", "services", "--eviction-hard", f"allocatableMemory.available<9Mi,{hard}")
    assert [row["signal"] for row in data["thresholds"]] == ["memory.available", "pid.available"]
    assert data["warnings"] == [
        "--eviction-hard: allocatableMemory.available: has no effect: there is no kubepods cgroup",
        "--eviction-hard: nodefs.available: has no effect: no service is killed for a disk, its files would stay",
        "--eviction-hard: containerfs.available: has no effect: no service is killed for a disk, its files would stay",
    ]
    kubelets = write(tmp_path, "k.yaml", KUBELET + "evictionHard: {memory.available: 9%, nodefs.available: 5%}\n")
    data = shown("--pods", "services", "--eviction-hard", "memory.available<9Gi,nodefs.inodesFree<100Mi")
    assert "100Mi is 104,857,600 inodes" in data["warnings"][0]
    for words in (("--eviction-hard", "memory.available<9000Mi,pid.available<0%"), ("--kubelet-config", kubelets)):
        assert shown("--pods", "services", *words)["warnings"] == []
    monkeypatch.setattr("monitor.pods.source.is_services", lambda _: True)
    data = shown()  # auto is shown as what it comes to here
    assert [row["signal"] for row in data["thresholds"]] == ["memory.available"]
    assert {row["name"]: row["value"] for row in data["settings"]}["pods"] == "auto"


def test_capacity_of_disks_that_are_named(tmp_path: Path, mounts: Mounts) -> None:
    second_disk = mounts.tmpfs("disk", size=8 << 20, inodes=100)

    def rows(*disks: object) -> dict[str, Any]:
        data = shown("--pods", "cgroups", *map(str, disks))
        return {t["signal"]: t for t in data["thresholds"]}

    found = rows("--nodefs", tmp_path, "--imagefs", second_disk)
    image, inodes, containers = (
        found[name] for name in ("imagefs.available", "imagefs.inodesFree", "containerfs.available")
    )
    assert [(one["capacity"], one["quantity"]) for one in (image, inodes)] == [(8 << 20, 1258291), (100, 5)]
    own = os.statvfs(tmp_path)
    assert found["nodefs.available"]["capacity"] == own.f_blocks * own.f_frsize
    # Containers are where images are, and so is the overlay.
    assert (containers["origin"], containers["capacity"]) == ("overlay: copy of imagefs.available (default)", 8 << 20)
    found = rows("--imagefs", second_disk)  # only what is named is measured
    assert [found[name]["capacity"] for name in ("imagefs.available", "nodefs.available")] == [8 << 20, None]
    code, _, err = output_of("check", "--imagefs", str(second_disk / "missing"))
    assert (code, "--imagefs" in err) == (2, True)
    hard = "memory.available<1Mi,nodefs.available<1%,nodefs.inodesFree<1%,imagefs.inodesFree<1%,imagefs.available<8Mi"
    disk = ("--pods", "cgroups", "--imagefs", str(second_disk))
    assert output_of("check", *disk, "--eviction-hard", hard)[:2] == (
        4,
        "warning: --eviction-hard: imagefs.available: 8Mi is always met, with a capacity of 8Mi: "
        "pods are evicted for ever; lower it\n",
    )


@pytest.mark.kernel
@pytest.mark.once
def test_node_cgroup() -> None:
    with live.cgroup("config", 64 << 20) as node:
        data = shown("--node-cgroup", str(node), "--kube-reserved", "memory=1Mi")
        assert [t["capacity"] for t in data["thresholds"][:2]] == [64 << 20, 63 << 20]
        met = [line for line in data["warnings"] if "is always met" in line]
        assert len(met) == 2  # the default of 100Mi, and its copy
        assert any("a kubelet does not start" in line for line in data["warnings"])
    code, out, err = output_of("show", "--node-cgroup", "outrace-test-missing")
    assert (code, out) == (2, "")
    assert "outrace-test-missing" in err


def test_a_configuration_is_checked_where_there_are_no_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a laptop, or in a container of a pipeline."""

    def missing(*_: object) -> None:
        raise CannotError("no memory controller is mounted", "mount it")

    given = "--eviction-hard", "memory.reclaimable<1Gi"
    as_services = output_of("check", *given, "--pods", "services")
    monkeypatch.setattr("monitor.kernel.cgroupfs.detect", missing)
    assert output_of("check", *given) == as_services

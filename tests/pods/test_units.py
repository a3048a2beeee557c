"""What the cgroups of a machine without Kubernetes are, by their paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.pods.units import (
    CONTAINER,
    DESCEND,
    MONITOR,
    PLAIN,
    PODMAN_POD,
    SKIP,
    UNIT,
    Place,
    classify,
    unsplit,
)

ID = "46b4aeed" * 8
MANAGER = "user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("system.slice/nginx.service", UNIT, "system/nginx.service"),
        ("system.slice/system-getty.slice/getty@tty1.service", UNIT, "system/getty@tty1.service"),
        ("web.slice/web-api.slice/api.service", UNIT, "web/api.service"),
        ("init.scope", UNIT, "system/init.scope"),
        ("user.slice/user-1000.slice/session-3.scope", UNIT, "user-1000/session-3.scope"),
        (f"{MANAGER}/init.scope", UNIT, "user-1000/init.scope"),
        (f"{MANAGER}/app.slice/app-firefox-7.scope", UNIT, "user-1000/app-firefox-7.scope"),
        (f"{MANAGER}/session.slice/shell.service", UNIT, "user-1000/shell.service"),
        (f"{MANAGER}/user.slice/libpod-{ID}.scope", UNIT, f"user-1000/libpod-{ID}.scope"),
        ("machine.slice/machine-qemu\\x2d1\\x2dvm.scope", UNIT, "machine/machine-qemu\\x2d1\\x2dvm.scope"),
        (f"system.slice/docker-{ID}.scope", CONTAINER, f"docker/{ID[:12]}"),
        (f"docker/{ID}", CONTAINER, f"docker/{ID[:12]}"),
        (f"machine.slice/libpod-{ID}.scope", CONTAINER, f"podman/{ID[:12]}"),
        (f"libpod_parent/libpod-{ID}", CONTAINER, f"podman/{ID[:12]}"),
        (f"libpod_parent/{ID}", PODMAN_POD, f"podman/{ID[:12]}"),
        (f"machine.slice/machine-libpod_pod_{ID}.slice", PODMAN_POD, f"podman/{ID[:12]}"),
        (f"machine.slice/libpod-conmon-{ID}.scope", MONITOR, f"podman/libpod-conmon-{ID}.scope"),
        ("libpod_parent/conmon", MONITOR, "podman/conmon"),
        ("lxc.payload.web", PLAIN, "cgroup/lxc.payload.web"),
        ("lxc.monitor.web", MONITOR, "podman/lxc.monitor.web"),
        (f"ecs/8f1b2c3d4e/{ID}", CONTAINER, f"docker/{ID[:12]}"),
        (f"ecs/cluster-1/8f1b2c3d4e/{ID}", CONTAINER, f"docker/{ID[:12]}"),
        ("nomad/odd", PLAIN, "cgroup/odd"),  # of no layout
        ("docker/db", PLAIN, "docker/db"),
        ("slurm/uid_1/odd", PLAIN, "cgroup/odd"),
        (f"actions_job/{ID}", CONTAINER, f"docker/{ID[:12]}"),
        ("machine.slice/systemd-nspawn@web.service", UNIT, "machine/systemd-nspawn@web.service"),
        (f"system.slice/nerdctl-{ID}.scope", UNIT, f"system/nerdctl-{ID}.scope"),
        ("nomad.slice/share.slice/8f1b.web.scope", UNIT, "nomad/8f1b.web.scope"),
        (f"{MANAGER}/user.slice/docker-{ID}.scope", UNIT, f"user-1000/docker-{ID}.scope"),  # rootless
        ("system.slice/batch", PLAIN, "system/batch"),
        ("_system.slice/_memory.service", UNIT, "system/memory.service"),  # systemd hides names of the kernel's files
    ],
)
def test_pods(path: str, kind: str, name: str) -> None:
    found = classify(path.split("/"))
    assert (found.kind, f"{found.namespace}/{found.name}") == (kind, name)
    assert found.ident == (ID if kind in (CONTAINER, PODMAN_POD) else "")


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("lxc/101", CONTAINER, "lxc/101"),  # Proxmox: its processes are in lxc/101/ns
        ("lxc.payload/web", CONTAINER, "lxc/web"), ("lxc.monitor/101", MONITOR, "lxc/monitor-101"),
        ("default/redis", CONTAINER, "containerd/redis"), (f"k8s.io/{ID}", CONTAINER, f"containerd/{ID}"),
        ("nomad/share/8f1b.web", CONTAINER, "nomad/8f1b.web"),
        ("nomad/8f1b2c3d-1-2-3-4", CONTAINER, "nomad/8f1b2c3d-1-2-3-4"),
        ("docker/buildkit/abc", CONTAINER, "buildkit/abc"), ("torque/7.srv", CONTAINER, "torque/7.srv"),
        ("lsf/c1/job.7.1.99", CONTAINER, "lsf/job.7.1.99"), ("UGE/7.1", CONTAINER, "gridengine/7.1"),
        ("firecracker/vm1", CONTAINER, "firecracker/vm1"),
        ("machine/qemu-1-vm.libvirt-qemu", CONTAINER, "machine/qemu-1-vm.libvirt-qemu"),
        ("slurm/uid_0/job_7/step_interactive", CONTAINER, "slurm/7.interactive"),
        ("slurm_node1/system", MONITOR, "slurm/monitor-system"), ("mesos/168b386b", CONTAINER, "mesos/168b386b"),
        ("hadoop-yarn/container_1558_0013_01_02", CONTAINER, "yarn/container_1558_0013_01_02"),
        ("mesos/slave", MONITOR, "mesos/monitor-slave"),
        ("htcondor/condor_execute_slot1", CONTAINER, "htcondor/condor_execute_slot1"),
        ("system.slice/htcondor/condor_execute_slot1", CONTAINER, "htcondor/condor_execute_slot1"),
        ("pbs_jobs.service/jobid/7.pbs", CONTAINER, "pbs/7.pbs"),
        ("pbs_jobs.service/jobs/7.pbs", CONTAINER, "pbs/7.pbs"),
        ("slurm/uid_1000/job_7/step_batch", CONTAINER, "slurm/7.batch"),
        ("slurm_node1/uid_0/job_7/step_0", CONTAINER, "slurm/7.0"),
        ("system.slice/slurmstepd.scope/job_7/step_0/user", CONTAINER, "slurm/7.0"),
        ("system.slice/node1_slurmstepd.scope/job_7/step_extern/user", CONTAINER, "slurm/7.extern"),
        ("system.slice/slurmstepd.scope/job_7/step_0/slurm", MONITOR, "slurm/monitor-7.0"),
        ("system.slice/slurmstepd.scope/system", MONITOR, "slurm/monitor-system"),
    ],
)  # fmt: skip
def test_a_directory_for_each_container(path: str, kind: str, name: str) -> None:
    parts = path.split("/")
    found = classify(parts)
    assert (found.kind, f"{found.namespace}/{found.name}", found.ident) == (kind, name, "")
    assert {classify(parts[:end]) for end in range(1, len(parts))} == {DESCEND}
    assert classify([*parts, "ns"]) == SKIP
    in_users = classify([*MANAGER.split("/"), *parts[:1]])
    assert in_users == DESCEND or (isinstance(in_users, Place) and in_users.user == 1000)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"kubepods-burstable.slice:cri-containerd:{ID}", ("cri-containerd", ID[:12], "")),
        # Its labels may forbid an eviction: outrace asks its runtime for them.
        (f"system.slice:docker:{ID}", ("docker", ID[:12], ID)),
        (f"machine.slice:libpod:{ID}", ("podman", ID[:12], ID)),
        ("system.slice:nerdctl:odd", ("nerdctl", "odd", "")),
        ("system.slice:docker:jvifp9a6b1lxa1kuw8bwfcovf", ("docker", "jvifp9a6b1lxa1kuw8bwfcovf", "")),  # a build
        ("system.slice:odd", None),
    ],
)
def test_a_container_in_the_unit_of_its_runtime(name: str, expected: tuple[str, ...] | None) -> None:
    found = unsplit(("system.slice", "docker.service", name))
    assert expected == (None if found is None else (found.namespace, found.name, found.ident))


@pytest.mark.parametrize(
    ("kind", "paths"),
    [
        (DESCEND, ("system.slice", "user.slice/user-1000.slice", MANAGER, f"{MANAGER}/app.slice", "docker")),
        (SKIP, ("kubepods.slice", "kubepods", "system.slice/dev-hugepages.mount", "system.slice/ssh.socket")),
    ],
)
def test_what_holds_pods_and_what_is_none(kind: object, paths: tuple[str, ...]) -> None:
    assert {classify(path.split("/")) for path in paths} == {kind}


def test_a_user_cannot_be_a_container_or_a_session_of_the_machine() -> None:
    for name in (f"docker-{ID}.scope", f"libpod-conmon-{ID}.scope", f"machine-libpod_pod_{ID}.slice/x.service"):
        found = classify([*MANAGER.split("/"), *name.split("/")])
        assert (found.kind, found.namespace, found.user, found.ident) == (UNIT, "user-1000", 1000, "")


_part = st.one_of(
    st.sampled_from(
        ["system.slice", "user.slice", "user-7.slice", "user@7.service", "docker", "libpod_parent", "-.slice", ".slice"]
    ),
    st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=20),
)


@given(st.lists(_part, min_size=1, max_size=8))
def test_any_path_is_read(parts: list[str]) -> None:
    found = classify(parts)
    assert isinstance(found, Place) or found in (DESCEND, SKIP)
    if isinstance(found, Place):
        assert found.name
        assert found.namespace
        assert "/" not in found.namespace

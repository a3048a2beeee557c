"""What a cgroup of a machine without Kubernetes is, by its path: a service, a scope, a session, a container, a slice.

systemd's tree has slices within slices, and a user's own manager (``user.slice/user-1000.slice/user@1000.service``) has
slices of its own. For Quadlet podman puts a container into the unit itself (``web.service/libpod-payload-ID``). All by
name, and pure: what a name is worth says `monitor.pods.claims`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from monitor.pods.cgroup_tree import is_kubepods

#: Slices within slices that are gone into; of a user's the last is one pod, with all that is in it.
MAX_DEPTH = 12
#: Of a directory: its children are looked at / neither it nor what is below it is a pod.
DESCEND, SKIP = "descend", "skip"
UNIT, CONTAINER, PODMAN_POD, MONITOR, PLAIN = "unit", "container", "podman pod", "monitor", "plain"
DOCKER, PODMAN = "docker", "podman"

_ID = "[0-9a-f]{64}"
_USER_SLICE = re.compile(r"user-(\d{1,10})\.slice")
_MANAGER = re.compile(r"user@(\d{1,10})\.service")
#: The prefixes of runtimes that know labels.
_LABELLED = {"docker": DOCKER, "libpod": PODMAN}
#: Of root's containers and pods, where the cgroup driver is systemd (else: `_LAYOUTS`).
_SCOPE = re.compile(rf"(docker|libpod)-({_ID})\.scope")
_POD_SLICE = re.compile(rf"(?:[^/]+-)?libpod_pod_({_ID})\.slice")
#: Of a container in a pod of podman's, by either driver.
IN_POD = re.compile(rf"libpod-({_ID})(?:\.scope)?")
#: A container in the cgroup of the unit that started it (``--cgroups=split``, as Quadlet does); conmon is beside it.
PAYLOAD = re.compile(rf"libpod-payload-({_ID})")
#: conmon and its like, which watch a container and have a cgroup beside it.
_MONITOR = re.compile(rf"(?:libpod|crio)-conmon-{_ID}(?:\.scope)?|conmon|lxc\.(?:monitor\..+|pivot)")
#: Where managers have a container, or what watches one, in directories of their own: namespace, kind, a pattern for
#: each directory below the node. What the groups have is the name; 64 digits are an id of docker's or podman's.
_LAYOUTS = tuple(
    (namespace, kind, tuple(map(re.compile, path.split("/"))))
    for namespace, kind, path in (
        ("lxc", CONTAINER, r"lxc(?:\.payload)?/(.+)"),  # Proxmox (the container is in lxc/101/ns), LXC up to 3
        ("lxc", MONITOR, r"lxc\.monitor/(.+)"),
        ("containerd", CONTAINER, r"(?:default|k8s\.io|buildkit)/(.+)"),  # namespaces of ctr, nerdctl, crictl, BuildKit
        ("buildkit", CONTAINER, r"docker/buildkit/(.+)"),  # dockerd's own
        (DOCKER, CONTAINER, rf"docker/({_ID})"),
        (PODMAN, CONTAINER, rf"libpod_parent/libpod-({_ID})"),
        (PODMAN, PODMAN_POD, rf"libpod_parent/({_ID})"),
        (DOCKER, CONTAINER, rf"ecs/[\w-]+/({_ID})"),
        (DOCKER, CONTAINER, rf"ecs/[\w-]+/[\w-]+/({_ID})"),
        (DOCKER, CONTAINER, rf"actions_job/({_ID})"),  # runners of GitHub
        ("mesos", MONITOR, r"mesos/(slave)"),  # the agent itself
        ("mesos", CONTAINER, r"mesos/(.+)"),
        ("yarn", CONTAINER, r"hadoop-yarn/(container_.+)"),
        ("htcondor", CONTAINER, r"htcondor/(.+)"),
        ("htcondor", CONTAINER, r"system\.slice/htcondor/(.+)"),  # cgroup v2
        ("pbs", CONTAINER, r"pbs_jobs\.service/(?:jobid|jobs)/(.+)"),
        ("torque", CONTAINER, r"torque/(.+)"),
        ("lsf", CONTAINER, r"lsf/.+/(job\..+)"),
        ("gridengine", CONTAINER, r"(?:UGE|AGE|SGE)/(.+)"),
        ("nomad", CONTAINER, r"nomad/(?:share|reserve)/(.+)"),
        ("nomad", CONTAINER, r"nomad/([0-9a-f]{8}-.+)"),  # cgroup v1
        ("garden", CONTAINER, r"garden/(.+)"),  # Cloud Foundry, Concourse
        ("firecracker", CONTAINER, r"firecracker/(.+)"),  # its jailer
        ("kata", CONTAINER, r"kata_overhead/(.+)"),
        ("machine", CONTAINER, r"machine/(.+)"),  # libvirt without systemd
        ("machine", CONTAINER, r"libvirt/(?:qemu|lxc)/(.+)"),
        ("openvz", CONTAINER, r"(?:ve|openvz)/(\d+)"),
        ("singularity", CONTAINER, r"(?:singularity|apptainer)/(.+)"),
        ("slurm", CONTAINER, r"slurm(?:_.+)?/uid_\d+/job_(\w+)/step_(.+)"),
        ("slurm", MONITOR, r"slurm(?:_.+)?/(system)"),
        ("slurm", CONTAINER, r"system\.slice/(?:.+_)?slurmstepd\.scope/job_(\w+)/step_(.+)/user"),
        ("slurm", MONITOR, r"system\.slice/(?:.+_)?slurmstepd\.scope/job_(\w+)/step_(.+)/slurm"),
        ("slurm", MONITOR, r"system\.slice/(?:.+_)?slurmstepd\.scope/(system)"),
    )
)
#: A container that runc was to hand to systemd (SLICE:PREFIX:ID) and made a directory of, in the cgroup of its starter.
_UNSPLIT = re.compile(r"[^:]*\.slice:([^:]+):([^:]+)")
#: Units that run nothing of their own, although systemd has cgroups for some of them.
_IDLE = (".mount", ".automount", ".socket", ".swap", ".device", ".target", ".timer", ".path")
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class Place:
    """A cgroup that is a pod. ``name``: the unit's, a container's short id, or the directory's; ``parts``: its path;
    ``user``: whose manager made it, None for the machine's.
    """

    kind: str
    namespace: str
    name: str
    parts: tuple[str, ...]
    ident: str = ""  # of a container or a pod of podman's or docker's (the namespace): all 64 digits
    user: int | None = None


def classify(parts: Sequence[str]) -> Place | str:
    """What the cgroup of this path below the node is: a `Place`, DESCEND or SKIP. Its parents were all DESCEND.

    No cgroup of a user is passed over by its name, or because it lies deep: that would hide what the user puts there.
    """
    user: int | None = None
    slices: list[str] = []
    if (found := _of_layout(tuple(parts))) is not None:
        return found
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        name = unit_name(part)
        manager = _MANAGER.fullmatch(name)
        if user is None and is_kubepods(part):
            return SKIP
        if manager and user is None and slices[:1] == ["user.slice"]:
            user, slices = int(manager[1]), [*slices, "user manager"]
            continue
        pod = user is None and _POD_SLICE.fullmatch(name)
        if name.endswith(".slice") and not pod and not (user is not None and depth >= MAX_DEPTH - 1):
            slices.append(name)
            continue
        if last or not name.endswith((".service", ".scope")):
            return _place(tuple(parts), slices, user)
        return SKIP  # what a manager has in its unit beside its containers
    return DESCEND


def _of_layout(parts: tuple[str, ...]) -> Place | str | None:
    """None for what is in none of `_LAYOUTS`."""
    for namespace, kind, levels in _LAYOUTS:
        found = [level.fullmatch(part) for level, part in zip(levels, parts, strict=False)]
        matches = [one for one in found if one is not None]
        if len(matches) < len(found):
            continue
        if len(parts) != len(levels):
            return DESCEND if len(parts) < len(levels) else SKIP
        name = ".".join(group for one in matches for group in one.groups())
        if re.fullmatch(_ID, name) and namespace in (DOCKER, PODMAN):
            return Place(kind, namespace, name[:12], parts, name)
        return Place(kind, namespace, name if kind == CONTAINER else f"monitor-{name}", parts)
    return None


def unsplit(parts: tuple[str, ...]) -> Place | None:
    """The container that a directory in a unit of a runtime's is (`_UNSPLIT`); None if it is none."""
    found = _UNSPLIT.fullmatch(parts[-1])
    if found is None:
        return None
    prefix, ident = found.groups()
    is_id = re.fullmatch(_ID, ident) is not None
    runtime = _LABELLED.get(prefix, "") if is_id else ""  # docker lists no step of a build, which has a short one
    name = ident[:12] if is_id else ident
    return Place(CONTAINER, runtime or prefix, name, parts, ident if runtime else "")


def _place(parts: tuple[str, ...], slices: Sequence[str], user: int | None) -> Place | str:
    name = unit_name(parts[-1])
    if user is None:
        if _MONITOR.fullmatch(name):
            return Place(MONITOR, PODMAN, name, parts)
        if found := _SCOPE.fullmatch(name):
            return Place(CONTAINER, _LABELLED[found[1]], found[2][:12], parts, found[2])
        if pod := _POD_SLICE.fullmatch(name):
            return Place(PODMAN_POD, PODMAN, pod[1][:12], parts, pod[1])
        if name.endswith(_IDLE):
            return SKIP
    if name == "init.scope" and not slices:
        return Place(UNIT, "system", name, parts)
    kind = UNIT if name.endswith((".service", ".scope")) else PLAIN
    if not slices and parts[0] in ("docker", "libpod_parent"):
        slices = parts[:1]  # a directory of another name than theirs
    return Place(kind, _namespace(slices, user), name, parts, user=user)


def _namespace(slices: Sequence[str], user: int | None) -> str:
    """user-UID in a user's slice, else the outermost slice's name: ``system``, ``web``; in none of them ``cgroup``."""
    if user is not None:
        return f"user-{user}"
    if slices[:1] == ["user.slice"]:
        own = next((found[1] for one in slices if (found := _USER_SLICE.fullmatch(one))), "")
        return f"user-{own}" if own else "user"
    if not slices:
        return "cgroup"  # beside the slices
    return slices[0].removesuffix(".slice") or "root"


def whole(parts: tuple[str, ...], user: int | None) -> Place | None:
    """A user's slice or a directory of `_LAYOUTS` as a pod, for the processes in itself; None where it is none."""
    of_runtime = parts[0] in ("docker", "libpod_parent")
    if user is None and (parts[-1].endswith(".slice") or of_runtime or _of_layout(parts) is None):
        return None
    return Place(PLAIN, "cgroup" if user is None else f"user-{user}", unit_name(parts[-1]), parts, user=user)


def managed_by(parts: Sequence[str]) -> int | None:
    """The user whose manager this cgroup is, else None. (Below it the user makes any cgroup.)"""
    found = _MANAGER.fullmatch(unit_name(parts[-1])) if unit_name(parts[0]) == "user.slice" else None
    return int(found[1]) if found else None


def unit_name(part: str) -> str:
    """The unit of a directory: systemd writes ``_`` before a name that the kernel's own files might have."""
    return part[1:] if part.startswith("_") and len(part) > 1 else part


def unescaped(name: str) -> str:
    """A unit's name with ``\\x2d`` and the like as the characters that they stand for (systemd-escape(1)): so YAML has
    it in double quotes.
    """
    raw = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), name)
    try:  # each escape is one byte: what is more than ASCII takes several
        return raw.encode("latin-1").decode()
    except (UnicodeEncodeError, UnicodeDecodeError):
        return raw

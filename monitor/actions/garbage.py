"""Which dead containers and unused images may be removed: the kubelet's rules, on what a runtime says. Pure.

Compare `pkg/kubelet/kuberuntime/kuberuntime_gc.go` and `pkg/kubelet/images/image_gc_manager.go`. What is not known for
sure to be garbage stays: a kubelet knows which pods were deleted, a runtime does not (docs/disks.md has what differs).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.errors import MonitorError
from monitor.policy.services import NEVER

#: Kinds of garbage.
CONTAINER, POD, IMAGE = "container", "pod", "image"
RUNNING, EXITED, OTHER = "running", "exited", "other"
#: A pod with this label is a kubelet's: it looks at the last containers to see what became of it.
KUBELET_LABEL = "io.kubernetes.pod.uid"
#: An image that was seen for the first time less than this many seconds ago stays: it may have been pulled for a
#: container that is about to be made. The kubelet's imageMinimumGCAge, which holds for an eviction too.
MIN_AGE_S = 120.0


class StoreTimeout(MonitorError):
    """The runtime does not answer: there is no use in asking on."""


class Garbage(NamedTuple):
    """Something that may be removed; `size` in bytes as the runtime says, None where it does not say.

    `names` and `digests` are all of an image's.
    """

    kind: str
    id: str
    name: str
    size: int | None = None
    names: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()


class Kept(NamedTuple):
    """Something that is not used at this moment, and why it stays."""

    kind: str
    name: str
    why: str


class Choice(NamedTuple):
    """What may go, in the order of removal, and what stays although nobody uses it."""

    go: tuple[Garbage, ...]
    kept: tuple[Kept, ...]

    @property
    def known_size(self) -> int:
        """Bytes of what may go, as far as they are known."""
        return sum(one.size or 0 for one in self.go)

    @property
    def unknown(self) -> int:
        """How many of them have no known size."""
        return sum(one.size is None for one in self.go)


@dataclass(frozen=True, slots=True)
class Container:
    """`pod` is the id of its pod, "" for none; `keep`: why the runtime's own settings forbid to remove it."""

    id: str
    name: str
    state: str
    pod: str = ""
    order: tuple[int, int] = (0, 0)  # attempt, time of creation: the newest is the greatest
    size: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    images: frozenset[str] = frozenset()  # what it calls its image: id, name, digest
    keep: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A sandbox of CRI, or a pod of podman. `uid`: several sandboxes in a row may be one pod's."""

    id: str
    uid: str
    name: str
    alive: bool
    order: tuple[int, int] = (0, 0)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Image:
    """`keep`: why it is none of ours to remove (pinned, of a store that is read only)."""

    id: str
    names: tuple[str, ...]
    digests: tuple[str, ...] = ()
    size: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    keep: str = ""

    @property
    def title(self) -> str:
        return next(iter((*self.names, *self.digests)), self.id)


def dead_containers(containers: Sequence[Container], pods: Sequence[Pod], *, last: bool = True) -> Choice:
    """Containers that have exited and nobody will look at, then the pods that are left without any.

    ``last``: of a pod that is alive or a kubelet's, the newest dead container of each name stays, as the kubelet's
    MaxPerPodContainer of 1 has it, and of a kubelet's pod its newest sandbox. Without it, all of a live pod's stay.
    """
    by_id = {pod.id: pod for pod in pods}
    alive = {pod.uid for pod in pods if pod.alive}
    kubelets = {pod.uid for pod in pods if KUBELET_LABEL in pod.labels}
    go: list[Garbage] = []
    kept: list[Kept] = []
    newest_seen: set[tuple[str, str]] = set()
    for one in sorted(containers, key=lambda one: one.order, reverse=True):
        if one.state == RUNNING:
            continue
        pod = by_id.get(one.pod)
        uid = pod.uid if pod is not None else ""
        first = (uid, one.name) not in newest_seen
        newest_seen.add((uid, one.name))
        why = _container_stays(one, pod, first, uid in alive, uid in kubelets, last)
        if why:
            kept.append(Kept(CONTAINER, one.name, why))
        else:
            go.append(Garbage(CONTAINER, one.id, one.name, one.size))
    gone = {one.id for one in go}
    members = {one.pod for one in containers if one.id not in gone}
    empty, held = _dead_pods(pods, members, kubelets)
    return Choice((*reversed(go), *empty), (*kept, *held))


def _container_stays(one: Container, pod: Pod | None, first: bool, alive: bool, kubelet: bool, last: bool) -> str:
    """Why it stays; "" if it may go."""
    if one.state != EXITED:
        return "it has not exited"
    if one.keep:
        return one.keep
    if protected(one.labels) or (pod is not None and protected(pod.labels)):
        return f"label {NEVER}"
    if pod is None:
        return "its pod is not known" if one.pod else ""
    if alive and not last:
        return "its pod runs"
    if first and (alive or kubelet):
        return "the last of its name in a pod that runs" if alive else "the last of its name in a pod of a kubelet"
    return ""


def _dead_pods(
    pods: Sequence[Pod], members: Collection[str], kubelets: Collection[str]
) -> tuple[list[Garbage], list[Kept]]:
    newest: dict[str, Pod] = {}
    for pod in pods:
        if pod.uid not in newest or pod.order > newest[pod.uid].order:
            newest[pod.uid] = pod
    go, kept = [], []
    for pod in sorted(pods, key=lambda pod: pod.order):
        if pod.alive or pod.id in members:
            continue
        if protected(pod.labels):
            kept.append(Kept(POD, pod.name, f"label {NEVER}"))
        elif pod.uid in kubelets and newest[pod.uid].id == pod.id:
            kept.append(Kept(POD, pod.name, "the newest sandbox of a pod of a kubelet"))
        else:
            go.append(Garbage(POD, pod.id, pod.name, 0))
    return go, kept


def unused_images(images: Sequence[Image], used: Collection[str], ages: Mapping[str, float] | None = None) -> Choice:
    """Images that no container uses, whether it runs or not. ``used``: ids, names and digests that containers name.

    ``ages``: seconds since each id was first seen; one that is not in it was seen just now. None: of any age.
    """
    wanted = set(map(_bare, used))
    go: list[Garbage] = []
    kept: list[Kept] = []
    for image in images:
        if wanted & set(map(_bare, (image.id, *image.names, *image.digests))):
            continue
        why = image.keep
        if not why and protected(image.labels):
            why = f"label {NEVER}"
        if not why and ages is not None and ages.get(image.id, 0.0) < MIN_AGE_S:
            why = f"first seen less than {MIN_AGE_S:g} s ago"
        if why:
            kept.append(Kept(IMAGE, image.title, why))
        else:
            go.append(Garbage(IMAGE, image.id, image.title, image.size, image.names, image.digests))
    return Choice(tuple(go), tuple(kept))


def protected(labels: Mapping[str, str]) -> bool:
    """Whether an operator wrote that it is never to go. Whatever the value but "false": a guess removes nothing."""
    return labels.get(NEVER, "false") != "false"


def is_pause(names: Iterable[str]) -> bool:
    """Whether it looks like the image of the containers that hold a pod's namespaces, which runtimes do not list."""
    return any(
        name.rpartition("/")[2].partition("@")[0].partition(":")[0] in ("pause", "podman-pause") for name in names
    )


def _bare(ident: str) -> str:
    return ident.removeprefix("sha256:")

"""Pods whose specs are known, wherever they come from, matched to their cgroups."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from monitor.errors import ConfigError, MonitorError
from monitor.kernel import cgroup_procs, cgroupfs
from monitor.owner import changed_by, mend
from monitor.pods import cgroup_tree, claims, manifest_files
from monitor.pods.cgroup_tree import PodDir, believed, holds_pods, kubepods_of, search, search_dirs, tree_uids
from monitor.pods.inotify import CHILDREN, FILES, IN_CREATE, Event
from monitor.pods.manifest_files import POD_CGROUP, Manifest, Parsed
from monitor.pods.model import RESCAN_S, FoundPod, PodSource, Scan, Within, first

_KEY = f"metadata.annotations[{POD_CGROUP}]"


class _Waiting(Exception):
    """A cgroup that is not there yet; ``watch`` are the directories in which it (or its parent) will appear."""

    def __init__(self, watch: list[Path], message: str) -> None:
        super().__init__(message)
        self.watch = dict.fromkeys(watch, CHILDREN)


class _Look(NamedTuple):
    """What was found of a ``manifest`` while the kubelet's directories for it were ``dirs``; it holds until something
    happens to or in the directories ``inside``.
    """

    manifest: Manifest
    dirs: tuple[PodDir | None, ...]
    found: FoundPod
    seen: Scan
    inside: Set[Path]


class SpecSource(PodSource):
    """Pods of manifests, each with the cgroup that the kubelet has for its uid, or that its annotation names."""

    #: What to do about a pod with outrace in it.
    HOLDS_US = "name a cgroup without it, or remove the manifest"
    #: Whether to report that a pod that has not ended has no cgroup.
    AWAITS = True

    def __init__(self, within: Within) -> None:
        super().__init__(within)
        self._dirs: dict[str, PodDir] = {}  # by uid: the directories in kubepods, in this scan
        self._looks: dict[str, _Look] = {}  # by uid
        self._seen: tuple[object, ...] = ()  # what they all depend on
        self._until_s = 0.0  # time.monotonic(): then all is looked at
        self._ids: dict[str, Set[str]] = {}  # uid -> ids of the containers that have a cgroup
        self._outside: dict[str, Path] | None = None  # `cgroup_tree.outside`, in this scan
        self._ours: dict[Path, str] = {}  # cgroups of outrace's own processes and process 1, and above, in this scan
        self._cleared: dict[int, float] = {}  # cgroup id -> when it held no kubelet's pods and no daemon

    def _find_kubepods(self) -> None:
        if not self._list_pods(self.kubepods):
            self._list_pods(kubepods_of(self.hierarchy, self.node, self._cgroup_root))

    def _match(self, scan: Scan, manifests: Sequence[Manifest]) -> None:
        self._outside, self._ours = None, self._spared_cgroups()
        self._forget()
        if not self._dirs and any(POD_CGROUP not in one.pod.annotations for one in manifests):
            uids = (uid for one in manifests for uid in tree_uids(one.pod))  # not where the kubelet puts it by default
            self._list_pods(search(self.hierarchy, self.node, uids) or self.kubepods)
        if self.kubepods is not None:
            scan.watch.update(dict.fromkeys(cgroup_tree.class_dirs(self.kubepods), CHILDREN))
        owners: dict[str, str] = {}  # of each pod's cgroup: where the pod is described
        around: dict[str, str] = {}  # ... and of each cgroup above it
        seen: dict[str, str] = {}
        for manifest in manifests:
            uid = manifest.pod.uid
            if uid in seen:
                scan.problems.append(
                    f"{manifest.where}: metadata.uid: {uid} is also the pod of {seen[uid]}; remove one of them"
                )
                continue
            seen[uid] = manifest.where
            found = self._settled(manifest, scan)
            if found is None:
                continue
            if other := _owner(owners, around, found):
                scan.problems.append(
                    f"{manifest.where}: metadata.annotations[{POD_CGROUP}]: cgroup {found.cgroup} is shared with "
                    f"the pod of {other}, so neither could be killed alone; give each pod its own"
                )
                continue
            scan.pods[uid], owners[os.fspath(found.cgroup)] = found, manifest.where
            around |= dict.fromkeys(_above(found.cgroup), manifest.where)
        self.kubepods = self.kubepods or self._kubepods_of(scan)

    def _settled(self, manifest: Manifest, scan: Scan) -> FoundPod | None:
        """The pod; None if it cannot be found (yet), which ``scan`` then says."""
        try:
            return self._look(manifest, scan)
        except cgroupfs.CgroupGone:
            scan.unsettled = True  # it went away between two looks
        except MonitorError as e:
            scan.problems.append(f"{manifest.where}: {e}")
        except _Waiting as e:
            if self.AWAITS and manifest.pod.phase not in ("Succeeded", "Failed"):
                scan.problems.append(f"{manifest.where}: {e}")
            scan.watch.update(e.watch)
        return None

    def _kubepods_of(self, scan: Scan) -> Path | None:
        """Where it is neither at its place nor searched for: pods that annotations name may lie in one."""
        kubes = (cgroup_tree.believed(self.hierarchy, found.cgroup) for found in scan.pods.values())
        return next((self.hierarchy.root / kube.root for kube in kubes if kube is not None), None)

    def _list_pods(self, kubepods: Path | None) -> bool:
        """List the directories of this kubepods, once in a scan: with 500 pods that is half of its time."""
        self.kubepods, self._dirs = kubepods, {}
        for one in () if kubepods is None else cgroup_tree.pods_in(kubepods):
            self._dirs.setdefault(one.uid, one)  # an empty one of a former QoS class, BestEffort, comes last
        return bool(self._dirs)

    def _forget(self) -> None:
        """Forget the looks that may not hold any more: all after `RESCAN_S`, or where an event may be missing."""
        paths = [(event.directory, event.directory / event.name) for event in self._events if event.directory]
        is_lost = self._watcher.incomplete or len(paths) < len(self._events)
        if is_lost or self._seen != (self._ours, self.kubepods) or time.monotonic() >= self._until_s:
            self._looks, self._seen = {}, (self._ours, self.kubepods)
            self._until_s = time.monotonic() + RESCAN_S
        added = self._watcher.added  # after they were looked at
        there = added.union(*paths)
        moved = added.union(event.directory for event in self._events if event.directory and not event.name)
        self._looks = {
            uid: look
            for uid, look in self._looks.items()
            if uid in self.pods and look.inside.isdisjoint(there) and look.found.cgroup.parent not in moved
        }
        self._ids = {uid: ids for uid, ids in self._ids.items() if uid in self.pods}
        known = {found.cgroup_ids[0] for found in self.pods.values()}
        self._cleared = {at: when for at, when in self._cleared.items() if at in known}

    def _look(self, manifest: Manifest, scan: Scan) -> FoundPod:
        """As `_find`; where nothing has changed what it found before: of 500 pods a whole look takes 50 ms."""
        pod, known = manifest.pod, self._looks.get(manifest.pod.uid)
        dirs = tuple(map(self._dirs.get, tree_uids(pod)))
        if known is not None and (known.manifest, known.dirs) != (manifest, dirs):
            known = None
        seen = Scan() if known is None else known.seen
        if known is None:
            self._ids.pop(pod.uid, None)  # no container has a cgroup where the pod has none
        try:
            found = self._find(manifest, seen) if known is None else known.found
        finally:
            scan.watch.update(seen.watch)
            scan.problems.extend(seen.problems)
        if known is None:
            inside = {path for path in (*seen.watch, *found.containers.values()) if found.cgroup in path.parents}
            self._looks[pod.uid] = _Look(manifest, dirs, found, seen, inside | {found.cgroup})
        return found

    def _find(self, manifest: Manifest, scan: Scan) -> FoundPod:
        """The pod with its directories; _Waiting if its cgroup is not there yet, ConfigError if it can never be."""
        key, cgroup = self._pod_cgroup(manifest, scan)
        if vital := self._ours.get(cgroup):
            raise self._would_kill(key, cgroup, vital)
        scan.watch[cgroup.parent] = CHILDREN
        if key != _KEY and (where := self._runs_outside(manifest, cgroup)):
            scan.watch[cgroup] = CHILDREN
            problem = (
                f"its containers run in {where}, and its cgroup {cgroup} is empty: the container runtime has another "
                "cgroup driver than the kubelet; the pod is not watched, and never evicted"
            )
            raise ConfigError(problem, "give both the same (containerd: SystemdCgroup = true), and restart them")
        containers = dict(sorted(self._containers(manifest, cgroup, scan).items()))
        ids = tuple(map(cgroupfs.cgroup_id, (cgroup, *containers.values())))
        return FoundPod(manifest.pod, cgroup, containers, ids)

    def _pod_cgroup(self, manifest: Manifest, scan: Scan) -> tuple[str, Path]:
        """The pod's directory, and the manifest's key that leads to it. Where the kubelet has one for the pod's uid it
        is that: the author of the pod wrote its annotations too.
        """
        text, kubepods = manifest.pod.annotations.get(POD_CGROUP), self.kubepods
        there = (self._dirs[uid].path for uid in tree_uids(manifest.pod) if uid in self._dirs)
        own = next((path for path in there if cgroupfs.exists(path)), None)
        if own is not None:
            if text is not None and own not in (Path(text), self.hierarchy.root / text.lstrip("/")):
                scan.problems.append(
                    f"{manifest.where}: {_KEY}: cgroup {text!r} is ignored, because the kubelet runs the pod in {own}; "
                    "remove the annotation"
                )
            return "metadata.uid", own
        if text is None:
            raise _Waiting(
                cgroup_tree.class_dirs(kubepods) if kubepods else search_dirs(self.node),
                f"metadata.uid: no cgroup of pod {manifest.pod.uid} under {kubepods or 'any kubepods'} yet, waiting "
                f"for it; name the pod's cgroup by the annotation {POD_CGROUP}",
            )
        path = self._annotated(POD_CGROUP, text, self.node)
        self._check_claim(manifest, text, path)
        return _KEY, path

    def _runs_outside(self, manifest: Manifest, cgroup: Path) -> Path | None:
        """Where the containers of a pod are whose own cgroup is empty; None where they are not found elsewhere: it may
        have ended.
        """
        if cgroup_tree.children(cgroup) or cgroup_procs.pids_in(os.fspath(cgroup)):
            return None
        if self._outside is None:
            self._outside = cgroup_tree.outside(self.node)
        found = (self._outside.get(name) for name in (*manifest.container_ids.values(), cgroup.name))
        return next((path for path in found if path is not None and cgroup_procs.processes(path)), None)

    def _check_claim(self, manifest: Manifest, text: str, path: Path) -> None:
        """Raises ConfigError where the annotation names what is no pod's, or another's."""
        cgroup = f"{_KEY}: cgroup {text!r}"
        if why := claims.refused(self.hierarchy.root, path):
            raise ConfigError(f"{cgroup} {why}", "name a cgroup of the pod's own, or remove the manifest")
        kube = believed(self.hierarchy, path)
        if kube is not None and kube.uid is not None and kube.uid not in tree_uids(manifest.pod):
            problem = f"{cgroup} is of the pod of uid {kube.uid}, and this pod's is {manifest.pod.uid}"
            raise ConfigError(problem, "correct metadata.uid, or remove the annotation")
        ident, now = cgroupfs.cgroup_id(path), time.monotonic()
        if now - self._cleared.get(ident, -RESCAN_S) < RESCAN_S / 2:  # so each look at all looks into it
            return  # looking into it takes long
        if holds_pods(self.hierarchy, path):
            raise ConfigError(f"{cgroup} holds the pods of a kubelet", "name a cgroup of one pod")
        if vital := self._ours.get(path) or claims.holds(path):
            raise self._would_kill(_KEY, path, vital)
        self._cleared[ident] = now

    def _would_kill(self, key: str, cgroup: Path, vital: str) -> ConfigError:
        problem = f"{key}: cgroup {cgroup} holds {vital}, which would be killed with the pod"
        return ConfigError(problem, self.HOLDS_US)

    def _annotated(self, key: str, text: str, inside: Path) -> Path:
        """The cgroup an annotation names, which must lie below ``inside``: the node, for a container the pod's."""
        try:
            path = cgroupfs.locate(self.hierarchy, text)
        except ConfigError as e:
            raise ConfigError(f"metadata.annotations[{key}]: {e}") from e
        if not os.fspath(path).startswith(f"{inside}/"):
            what, other = "the pod's cgroup ", ""
            if inside == self.node:
                what, other = "the node ", ", or start outrace with another --node-cgroup"
            problem = f"metadata.annotations[{key}]: cgroup {text!r} is not below {what}{inside}"
            raise ConfigError(problem, f"name a cgroup below it{other}")
        if not cgroupfs.exists(path):
            problem = f"metadata.annotations[{key}]: no cgroup {path} yet, waiting for it"
            there = next(above for above in path.parents if above == self.hierarchy.root or os.path.isdir(above))
            raise _Waiting([there], f"{problem}; create it, or correct the annotation")
        return path

    def _containers(self, manifest: Manifest, cgroup: Path, scan: Scan) -> dict[str, Path]:
        pod = manifest.pod
        found: dict[str, Path] = {}
        by_id: dict[str, Path] = {}
        if manifest.container_ids or POD_CGROUP not in pod.annotations:
            by_id = cgroup_tree.containers_in(cgroup)
            self._ids[pod.uid] = by_id.keys()
            scan.watch[cgroup] = CHILDREN
        for container in (*pod.containers, *pod.init_containers):
            key = f"{POD_CGROUP}.{container.name}"
            if key in pod.annotations:
                try:
                    path = self._annotated(key, pod.annotations[key], inside=cgroup)
                except (_Waiting, ConfigError) as e:
                    # The pod is complete without: its own cgroup is what is measured and killed.
                    scan.problems.append(f"{manifest.where}: {e}")
                    scan.watch.update(e.watch if isinstance(e, _Waiting) else {})
                    continue
                found[container.name] = path
                scan.watch[path.parent] = CHILDREN
            elif (cid := manifest.container_ids.get(container.name)) in by_id:
                found[container.name] = by_id[cid]
        if not found and len(pod.containers) == 1 and not any(k.startswith(f"{POD_CGROUP}.") for k in pod.annotations):
            found[pod.containers[0].name] = cgroup
        return found


def _owner(owners: Mapping[str, str], around: Mapping[str, str], found: FoundPod) -> str | None:
    """Whose the pod's cgroup is already. One that an annotation names may also lie in another's, or around it."""
    at = os.fspath(found.cgroup)
    if POD_CGROUP not in found.pod.annotations:
        return owners.get(at)
    inside = (owners[path] for path in (at, *_above(found.cgroup)) if path in owners)
    return next(inside, around.get(at))


def _above(path: Path) -> list[str]:
    text = os.fspath(path)
    return [text[:end] for end, char in enumerate(text) if char == "/"]


class ManifestSource(SpecSource):
    """Pods of the manifests in ``directory`` (``--pods manifests:DIR``); ConfigError if it is no directory.

    The annotation ``outrace/cgroup`` names the pod's cgroup relative to the memory hierarchy and
    ``outrace/cgroup.CONTAINER`` a container's; without it the kubepods tree is searched by uid. A file that becomes
    unreadable keeps its last good pods until it is corrected or removed: an editor's half-written file must not take a
    pod out of the ranking.
    """

    def __init__(self, directory: Path, within: Within) -> None:
        option = f"--pods manifests:{directory}"
        if not directory.is_dir():
            what = "is not a directory" if directory.exists() else "does not exist"
            raise ConfigError(f"{option}: {directory} {what}", "create it, or name the directory of manifests")
        if problem := changed_by(directory):
            remedy = f"{mend(problem)}, or name another directory"
            raise ConfigError(f"{option}: {problem}, who could have any pod killed", remedy)
        super().__init__(within)
        self.directory = directory
        self._files: dict[str, Parsed] = {}

    def _concerns(self, event: Event) -> bool:
        if event.directory != self.directory:
            return True
        if not manifest_files.is_manifest_name(event.name):
            return not event.name or event.name == "..data"  # the link a mounted ConfigMap changes all its files by
        if event.mask & IN_CREATE:
            # A new regular file is still empty; IN_CLOSE_WRITE follows. A link is complete at once.
            path = self.directory / event.name
            return path.is_symlink() or not path.exists() or path.stat().st_nlink > 1
        return True

    def _scan(self) -> Scan:
        scan = Scan(watch={self.directory: FILES})
        self._find_kubepods()
        kept = "its last manifests stay in use"
        try:
            if problem := changed_by(self.directory):
                danger = f"{problem}, who could have any pod killed"
                scan.problems.append(f"{self.directory}: {danger}: {kept}; {mend(problem)}")
                scan.unsettled = True
            else:
                self._read_files()
        except OSError as e:
            scan.problems.append(f"{self.directory}: {e.strerror}; {kept} until it is back")
            scan.unsettled = True
        for file in self._files.values():
            scan.problems.extend(file.problems)
        self._match(scan, [manifest for file in self._files.values() for manifest in file.manifests])
        return scan

    def _read_files(self) -> None:
        """Bring the parsed files up to date."""
        files: dict[str, Parsed] = {}
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if not manifest_files.is_manifest_name(entry.name) or os.path.isdir(entry.path):
                    continue
                known = self._files.get(entry.name)
                if (parsed := manifest_files.read(Path(entry.path), known)) is not None:
                    files[entry.name] = parsed if parsed is known else _keep_last_good(parsed, known)
        self._files = dict(sorted(files.items()))


def _keep_last_good(parsed: Parsed, before: Parsed | None) -> Parsed:
    """A file with problems keeps those pods of its last version that it no longer lists."""
    if before is None or not parsed.problems:
        return parsed
    listed = {m.pod.uid for m in parsed.manifests}
    kept = tuple(m for m in before.manifests if m.pod.uid not in listed)
    if not kept:
        return parsed
    names = first([f"{m.pod.namespace}/{m.pod.name}" for m in kept])
    problems = tuple(f"{p} (still used as it was: {names})" for p in parsed.problems)
    return replace(parsed, manifests=(*parsed.manifests, *kept), problems=problems)

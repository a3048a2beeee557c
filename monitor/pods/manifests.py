"""Pods from a directory of Pod manifests (``--pods manifests:DIR``), matched to their cgroups.

The annotation ``outrace/cgroup`` names the pod's cgroup relative to the memory hierarchy and
``outrace/cgroup.CONTAINER`` a container's; without it the kubepods tree is searched by uid. Manifests appear, change
and vanish while the monitor runs. A file that becomes unreadable keeps its last good pods until it is corrected or
removed: an editor's half-written file must not take a pod out of the ranking.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from monitor.errors import ConfigError
from monitor.owner import changed_by, mend
from monitor.pods import manifest_files
from monitor.pods.inotify import FILES, IN_CREATE, Event
from monitor.pods.manifest_files import Manifest, Parsed
from monitor.pods.model import Scan, Within
from monitor.pods.spec_source import SpecSource

#: A file changed twice within one tick of the kernel's clock (4 to 10 ms) can look unchanged: read young ones again.
_RACY_NS = 20_000_000


@dataclass
class _File:
    stamp: tuple[int, int, int] | None  # (mtime_ns, size, inode) it was parsed at; None: parse it again
    parsed: Parsed


class ManifestSource(SpecSource):
    """Pods of the manifests in ``directory``; ConfigError if it is no directory."""

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
        self._files: dict[str, _File] = {}

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

    def _scan(self, events: Iterable[Event]) -> Scan:
        for event in events:
            if event.directory == self.directory and event.name in self._files:
                self._files[event.name].stamp = None
        scan = Scan(watch={self.directory: FILES})
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
        for _, file in sorted(self._files.items()):
            scan.problems.extend(file.parsed.problems)
        self._match(scan)
        return scan

    def _read_files(self) -> None:
        """Bring the parsed files up to date; a file that looks as before is not parsed again."""
        now = time.time_ns()
        present: set[str] = set()
        with os.scandir(self.directory) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if not manifest_files.is_manifest_name(entry.name):
                    continue
                stamp = None
                try:
                    stat = entry.stat()
                    if entry.is_dir():
                        continue
                    stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                except FileNotFoundError:
                    continue  # renamed or removed meanwhile, or a link to nothing
                except OSError:
                    pass  # a link to itself, or a file its server forgot: reading it says so, and the others count
                present.add(entry.name)
                known = self._files.get(entry.name)
                if known is None or stamp is None or known.stamp != stamp:
                    parsed = _keep_last_good(manifest_files.read(Path(entry.path)), known.parsed if known else None)
                    settled = stamp is not None and now - stamp[0] > _RACY_NS
                    self._files[entry.name] = _File(stamp if settled else None, parsed)
        for name in self._files.keys() - present:
            del self._files[name]
            self._located.clear()  # what is still named comes back with the next look

    def _manifests(self) -> Iterator[Manifest]:
        for _, file in sorted(self._files.items()):
            yield from file.parsed.manifests


def _keep_last_good(parsed: Parsed, before: Parsed | None) -> Parsed:
    """A file with problems keeps those pods of its last version that it no longer lists."""
    if before is None or not parsed.problems:
        return parsed
    listed = {m.pod.uid for m in parsed.manifests}
    kept = tuple(m for m in before.manifests if m.pod.uid not in listed)
    if not kept:
        return parsed
    names = ", ".join(f"{m.pod.namespace}/{m.pod.name}" for m in kept[:3]) + (", ..." if len(kept) > 3 else "")
    problems = tuple(f"{p} (still used as it was: {names})" for p in parsed.problems)
    return Parsed((*parsed.manifests, *kept), problems)

"""One clean-up of a runtime's store, from a look to the bytes that came back: what `outrace cleanup` does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from monitor import documents
from monitor.actions.garbage import IMAGE, Choice, Garbage, Image, StoreTimeout, unused_images
from monitor.errors import MonitorError
from monitor.kernel.durable import replace_file
from monitor.owner import ChangeableError, read_alone
from monitor.pods.stores import CRI, Store

CONTAINERS, IMAGES = "containers", "images"
#: Removed or not, and why not.
WOULD_GO, REMOVED, FAILED, IN_USE, NOT_TRIED = "would go", "removed", "failed", "in use meanwhile", "not tried"
#: So many items, and so many that stay, are in a report; the counts are of all.
MOST_ITEMS = 200


class OpenStore(Protocol):
    """A runtime's store while it is open."""

    name: str

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def paths(self) -> list[str]: ...
    def dead(self) -> Choice: ...
    def images(self) -> list[Image]: ...
    def used(self) -> set[str]: ...
    def check_removal(self) -> None: ...
    def remove(self, one: Garbage) -> None: ...
    def settle(self) -> None: ...


class Freed(NamedTuple):
    """How much more of a file system is free than before; less, if somebody else wrote meanwhile."""

    path: str
    bytes: int
    inodes: int


class Report(NamedTuple):
    """What a clean-up did, or would do. `fates` has one for each of ``choice.go``."""

    store: str
    what: str
    removed: bool
    choice: Choice
    fates: Sequence[str]
    freed: Sequence[Freed] | None
    problems: Sequence[str]

    @property
    def failed(self) -> bool:
        """Whether something is left that was to go. What is used meanwhile is not."""
        return FAILED in self.fates or NOT_TRIED in self.fates

    def to_json(self) -> dict[str, Any]:
        """As `outrace cleanup -o json` prints it."""
        rows = zip(self.choice.go, self.fates, strict=True)
        items = [
            {"kind": one.kind, "id": one.id, "name": one.name, "bytes": one.size, "fate": fate} for one, fate in rows
        ]
        kept = [one._asdict() for one in self.choice.kept]
        return {
            "runtime": self.store,
            "what": self.what,
            "removing": self.removed,
            "count": len(items),
            "removed": sum(fate == REMOVED for fate in self.fates),
            "bytes": self.choice.known_size,
            "unknown_size": self.choice.unknown,
            "freed": None if self.freed is None else [one._asdict() for one in self.freed],
            "items": items[:MOST_ITEMS],
            "kept": kept[:MOST_ITEMS],
            "left_out": max(0, len(items) - MOST_ITEMS) + max(0, len(kept) - MOST_ITEMS),
            "problems": list(self.problems),
        }


def open_store(store: Store, within_s: float) -> OpenStore:
    """The store, of which nothing is asked after ``within_s`` seconds. Raises MonitorError."""
    deadline = time.monotonic() + within_s
    if store.kind == CRI:
        from monitor.actions.cri import CriStore

        return CriStore(store, deadline)
    from monitor.actions.podman import PodmanStore

    return PodmanStore(deadline)


def clean(store: Store, what: str, *, remove: bool, within_s: float, seen: Path | None = None) -> Report:
    """Find what may go of ``what`` and, to ``remove`` it, remove it. ``seen`` remembers when images were first seen.

    Raises MonitorError where nothing could be found out; what goes wrong later is in the report.
    """
    problems: list[str] = []
    with open_store(store, within_s) as opened:
        if remove:
            opened.check_removal()
        if what == CONTAINERS:
            choice = opened.dead()
        else:
            images, used = opened.images(), opened.used()
            ages = None if seen is None else ages_of([image.id for image in images], seen, time.time(), problems)
            choice = unused_images(images, used, ages)
        if not remove:
            return Report(opened.name, what, False, choice, [WOULD_GO] * len(choice.go), None, problems)
        paths = _paths(opened, problems)
        before = dict(_measured(paths))
        fates = list(_remove(opened, choice, problems))
        if REMOVED in fates:
            opened.settle()
        if what == IMAGES and seen is not None:
            gone = {one.id for one, fate in zip(choice.go, fates, strict=True) if fate == REMOVED}
            ages_of([image.id for image in images if image.id not in gone], seen, time.time(), problems)
        return Report(opened.name, what, True, choice, fates, list(_freed(before)), problems)


def ages_of(idents: Sequence[str], seen: Path, now_s: float, problems: list[str]) -> dict[str, float]:
    """Seconds since each image was first seen, by the file ``seen``, which then knows these and no others.

    Without the file all of them are old, as they are to a kubelet that starts, unless it cannot be made; times are
    those of the clock, and one in the future is now. What cannot be noted is new again at the next look, and stays.
    """
    known: Mapping[str, Any] = {}
    otherwise = now_s
    try:
        found = documents.from_json(documents.decoded(read_alone(seen)))
        if not isinstance(found, dict):
            raise ValueError("not a table")
        known = found
    except FileNotFoundError:
        otherwise = 0.0
    except (OSError, ValueError, ChangeableError) as error:
        problems.append(f"{seen}: {error}: images are taken for new")
    times = {}
    for ident in idents:
        at = known.get(ident, otherwise)
        times[ident] = at if isinstance(at, int | float) and 0 <= at <= now_s else now_s  # NaN is neither
    try:
        replace_file(seen, json.dumps(times).encode())
    except OSError as error:
        problems.append(f"{seen}: {error.strerror}: which images are new is not remembered")
        if otherwise == 0.0:  # there would be none at the next look either, and nothing would ever be new
            return dict.fromkeys(times, 0.0)
    return {ident: now_s - at for ident, at in times.items()}


def _remove(store: OpenStore, choice: Choice, problems: list[str]) -> Iterator[str]:
    """Remove one after the other; a failure is no reason to leave the next, silence is."""
    silent = ""
    for one in choice.go:
        if silent:
            yield NOT_TRIED
            continue
        try:
            if one.kind == IMAGE and _is_used(store, one):
                yield IN_USE
                continue
            store.remove(one)
        except MonitorError as error:
            silent = str(error) if isinstance(error, StoreTimeout) else ""
            problems.append(f"{one.kind} {one.name}: {error}")
            yield FAILED
        else:
            yield REMOVED


def _is_used(store: OpenStore, one: Garbage) -> bool:
    """A container may have been made of it since it was chosen."""
    image = Image(one.id, one.names, one.digests)
    return not unused_images([image], store.used()).go


def _paths(store: OpenStore, problems: list[str]) -> list[str]:
    try:
        return store.paths()
    except MonitorError as error:
        problems.append(f"what came back is not known: {error}")
        return []


def _measured(paths: Sequence[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Free bytes and inodes of each file system once, by a path on it."""
    devices = set()
    for path in paths:
        try:
            device, seen = os.stat(path).st_dev, os.statvfs(path)
        except OSError:
            continue  # a directory of another mount namespace, or no more
        if device not in devices:
            devices.add(device)
            yield path, (seen.f_bavail * seen.f_frsize, seen.f_ffree)


def _freed(before: Mapping[str, tuple[int, int]]) -> Iterator[Freed]:
    for path, (size, inodes) in _measured(list(before)):
        yield Freed(path, size - before[path][0], inodes - before[path][1])

"""What one process has changed of a pod: noted before the first write, and until all of it is restored."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from monitor.actions.changes import VANISHED, Change, enable_below, identity_of, put_back, source_of, value_of, way_back
from monitor.actions.ledger import HELD, OVER, Ledger
from monitor.kernel.cgroup_procs import CGROUPS
from monitor.kernel.troubles import TROUBLES


class BrakeFile:
    """``file`` in the cgroup ``path``. Raises OSError where it cannot be opened for writing."""

    def __init__(self, path: Path, file: str) -> None:
        self.path, self.file = path, file
        self.identity = identity_of(path)
        # Before Linux 6.16 it is ignored.
        self._write = os.open(path / file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        self._read = self._write
        if source_of(file) != file:
            try:
                self._read = os.open(path / source_of(file), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                os.close(self._write)
                raise

    def read(self) -> str:
        """Its value, as it would be written. Raises OSError (ENODEV: the cgroup is gone)."""
        return value_of(self.file, os.pread(self._read, 4096, 0).decode(errors="replace"))

    def write(self, value: str) -> None:
        os.pwrite(self._write, value.encode(), 0)

    def change(self, now: str, value: str, before: Change | None, uid: str, why: str) -> Change | None:
        """The change that a write of ``value`` is, where the file has ``now``, and ``before`` is our change in force;
        None if the file has that value already, and not from us.
        """
        old, written = now, tuple[str, ...]()
        if before is not None and now in (before.old, *before.written):
            # Only what is there: a value that the kernel refused (EBUSY) is in `before`, and never was in force.
            old, written = before.old, (now,) if now != before.old else ()
        elif now == value:
            return None
        kept = tuple(one for one in written if one != value)
        return Change(str(self.path), self.file, self.identity, old, (*kept, value), uid, why)

    def has(self, change: Change) -> bool:
        """Whether what was written is there still, in this very cgroup. Raises OSError."""
        return change.identity == self.identity and self.read() in change.written

    def put_back(self, change: Change) -> str:
        """The first step of `way_back`: write the old value where one of ours is there. Raises OSError."""
        try:
            return put_back(change, self.read, self.write)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            return VANISHED

    def close(self) -> None:
        for fd in {self._read, self._write}:
            with suppress(OSError):
                os.close(fd)


#: What is to be changed: None where the value is there already, and is not ours.
Planned = dict[BrakeFile, Change | None]


#: Times that a file is read anew because another process of outrace has written it meanwhile.
_TRIES = 8


class BrakeLedger:
    """Of one pod. ``order``: names of files, in the order of undoing. ``why``: `HELD`, `SOFT`, `STALL`."""

    def __init__(self, uid: str, journal: Ledger, order: Sequence[str], why: str = HELD) -> None:
        self._uid, self._journal, self._order, self._why = uid, journal, order, why
        #: Descriptor of the pod's cgroup, which has the note.
        self.directory = -1
        self.files: dict[str, BrakeFile] = {}
        #: By file: in force, or about to be.
        self.changes: dict[str, Change] = {}
        #: Restored, but not over: cgroups below have it still.
        self.rest: dict[str, Change] = {}
        self._steps: dict[str, Iterator[object]] = {}  # of those that are under way
        self.since_ns = 0

    @property
    def is_clear(self) -> bool:
        """Whether all is restored."""
        return not (self.changes or self.rest)

    def file(self, names: Sequence[str]) -> BrakeFile | None:
        """The first of these that is here."""
        return next((self.files[name] for name in names if name in self.files), None)

    def adopt(self) -> None:
        """Adopt the changes that an earlier daemon noted and that are there still, if this one has all of their files:
        else `changes` is empty. Raises OSError and ValueError.
        """
        journal = self._journal
        noted = {change.file: change for change in journal.changes(self.directory)}
        if not noted.keys() <= self.files.keys():
            return
        found = {name: c for name, c in noted.items() if self.files[name].has(c)}
        self.changes = {name: replace(change, why=HELD) for name, change in found.items()}
        if self.changes:
            self.rest = {name: c for name, c in noted.items() if name not in self.changes}
            self.since_ns = journal.since_ns(self.directory)

    def change(self, file: BrakeFile, value: str) -> Change | None:
        """What a write of ``value`` would change; None where the file has it already, not from us. Raises OSError."""
        before = self.changes.get(file.file) or self.rest.get(file.file)
        # Another process of outrace notes before it writes, and restores before it removes its note: its value, if it
        # is read here, has a note before or after the read, unless the file changes again.
        change, others = None, self._journal.others(self.directory)
        for _ in range(_TRIES):
            now = file.read()
            change = file.change(now, value, before, self._uid, self._why)
            others = [*others, *self._journal.others(self.directory)]
            if change is None or not others:
                break
            change = self._journal.with_own_value(self.directory, change, others)
            if file.read() == now:
                break
        return change

    def expect(self, planned: dict[BrakeFile, Change | None]) -> None:
        """Note what is about to be changed, and all that is. None: the value that is there is another program's, and
        stays as it is. Raises OSError.
        """
        for file, change in planned.items():
            if change is None:
                self.changes.pop(file.file, None)
            else:
                self.changes[file.file] = change
                self.rest.pop(file.file, None)
        self.note()

    def write(self, planned: dict[BrakeFile, Change | None]) -> None:
        """Write the last of each change's values, in this order. Raises OSError."""
        for file, change in planned.items():
            if change is not None:
                file.write(change.written[-1])

    def put_back(self, *names: str) -> list[tuple[str, str]]:
        """Restore: (file, what became of it). What the kernel refuses to undo, and what is not over, stays noted."""
        fates = []
        for name in names:
            change = self.changes.get(name)
            if change is not None:
                steps = way_back(change, self.files[name].put_back)
                try:
                    fates.append((name, next(steps)))
                except OSError as error:
                    TROUBLES.note("cgroup", error, self._uid)
                else:
                    del self.changes[name]
                    self.rest[name], self._steps[name] = replace(change, why=OVER), steps
        if fates:
            self.finish()
        return fates

    def finish(self) -> bool:
        """Continue with what is not over, `CGROUPS` of those below in each call, because the hot thread calls; whether
        there is more to do at once. What the kernel refuses begins anew with the next call.
        """
        more = False
        for name, change in list(self.rest.items()):
            steps = self._steps.pop(name, None) or enable_below(change)
            try:
                if sum(1 for _ in islice(steps, CGROUPS)) < CGROUPS:
                    del self.rest[name]
                else:
                    self._steps[name], more = steps, True
            except OSError as error:
                TROUBLES.note("cgroup", error, self._uid)
        try:
            self.note()
        except OSError as error:
            TROUBLES.note("cgroup", error, self._uid)
        return more

    def note(self) -> None:
        """Note what is changed, or about to be. Raises OSError."""
        if self.is_clear:
            self._journal.forget(self.directory)
        else:
            noted = self.rest | self.changes
            self._journal.note(self.directory, [noted[name] for name in self._order if name in noted], self.since_ns)

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        with suppress(OSError):
            os.close(self.directory)
        self.files, self.changes, self.rest, self._steps = {}, {}, {}, {}
        self.directory, self.since_ns = -1, 0

"""What one process has changed of a pod: noted before the first write, and until all of it is restored."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from monitor.actions.changes import FILES, BrakeFile, Change, parsed
from monitor.actions.ledger import HELD, WRONG, Ledger, body_of
from monitor.kernel.troubles import TROUBLES

#: What is to be changed, by the name of the file: None where the value is there already, and is not ours.
Planned = dict[str, Change | None]
#: Times that a file is read anew because another process of outrace has written it meanwhile.
_TRIES = 8


class BrakeLedger:
    """Of one pod. ``why``: `HELD`, `SOFT`, `STALL`."""

    def __init__(self, uid: str, journal: Ledger, why: str = HELD) -> None:
        self._uid, self._journal, self._why = uid, journal, why
        #: Descriptor of the pod's cgroup, which has the note.
        self.directory = -1
        self.files: dict[str, BrakeFile] = {}
        #: By file: in force, or about to be.
        self.changes: dict[str, Change] = {}
        #: When the pod was held first (CLOCK_MONOTONIC), perhaps by an earlier daemon; 0: it is not.
        self.since_ns = 0

    def open(self, cgroup: Path, *files: str) -> str:
        """Open a cgroup and these files of it; why nothing can be noted at it, "" if it can. Raises OSError."""
        try:
            self.directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            for name in files:
                self.files[name] = BrakeFile(cgroup, name)
        except OSError:
            self.close()
            raise
        return self._journal.obstacle(self.directory)

    def file(self, names: Sequence[str]) -> str | None:
        """The first of these that is here."""
        return next((name for name in names if name in self.files), None)

    def adopt(self) -> None:
        """Adopt the changes that an earlier daemon noted, if one is there still, and this one has all of their files:
        else `changes` is empty. Raises OSError, or one of `WRONG`.
        """
        body = body_of(self.directory, self._journal.attribute)
        noted = {change.file: change for change in map(parsed, body["changes"])}
        if noted.keys() <= self.files.keys() and any(self.files[name].has(change) for name, change in noted.items()):
            self.changes = noted
            with suppress(*WRONG):
                self.since_ns = int(body["since_ns"])

    def change(self, name: str, value: str) -> Change | None:
        """What a write of ``value`` would change; None where the file has it already, not from us. Raises OSError."""
        file, others = self.files[name], self._journal.others(self.directory)
        # Another process of outrace notes before it writes, and restores before it removes its note: its value, if it
        # is read here, has a note before or after the read, unless the file changes again.
        change = None
        for _ in range(_TRIES):
            now = file.read()
            change = self._change(file, now, value)
            others = [*others, *self._journal.others(self.directory)]
            if change is None or not others:
                break
            change = self._with_own_value(change, others)
            if file.read() == now:
                break
        return change

    def _change(self, file: BrakeFile, now: str, value: str) -> Change | None:
        """The same where the file has ``now``."""
        before = self.changes.get(file.file)
        old, written = now, tuple[str, ...]()
        if before is not None and now in (before.old, *before.written):
            # Only what is there: a value that the kernel refused (EBUSY) is in `before`, and never was in force.
            old, written = before.old, (now,) if now not in (before.old, value) else ()
        elif now == value:
            return None
        return Change(str(file.path), file.file, file.identity, old, (*written, value), self._uid, self._why)

    def _with_own_value(self, change: Change, others: Sequence[str]) -> Change:
        """The change with the pod's own value as the old one, where that is what one of these processes wrote."""
        for name in others:
            with suppress(OSError, *WRONG):
                for other in map(parsed, body_of(self.directory, name)["changes"]):
                    is_same = (other.file, other.identity) == (change.file, change.identity)
                    if is_same and change.old in other.written:
                        change = change._replace(old=other.old)
        return change

    def put(self, values: Mapping[str, str]) -> None:
        """Change these files, in this order, each noted before. Raises OSError."""
        planned = {name: self.change(name, value) for name, value in values.items()}
        self.expect(planned)
        self.write(planned)

    def expect(self, planned: Planned) -> None:
        """Note what is about to be changed, and all that is. None: the value that is there is another program's, and
        stays as it is. Raises OSError.
        """
        for name, change in planned.items():
            if change is None:
                self.changes.pop(name, None)
            else:
                self.changes[name] = change
        self._note()

    def write(self, planned: Planned) -> None:
        """Write the last of each change's values, in this order. Raises OSError."""
        for name, change in planned.items():
            if change is not None:
                self.files[name].write(change.written[-1])

    def put_back(self, *names: str) -> list[tuple[str, str]]:
        """Restore these files, or all: (file, what became of it). What the kernel refuses to undo stays noted."""
        fates = []
        for name in names or FILES:
            if (change := self.changes.get(name)) is not None:
                try:
                    fates.append((name, self.files[name].put_back(change)))
                    del self.changes[name]
                except OSError as error:
                    TROUBLES.note("cgroup", error, self._uid)
        if fates:
            try:
                self._note()
            except OSError as error:
                TROUBLES.note("cgroup", error, self._uid)
        return fates

    def _note(self) -> None:
        """Note what is changed, or about to be. Raises OSError."""
        if not self.changes:
            self._journal.forget(self.directory)
            return
        ordered = [self.changes[name]._asdict() for name in FILES if name in self.changes]
        self._journal.note(self.directory, {"since_ns": self.since_ns, "changes": ordered})

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        with suppress(OSError):
            os.close(self.directory)
        self.files, self.changes = {}, {}
        self.directory, self.since_ns = -1, 0

"""What outrace changed in files of cgroups and processes, and how it comes back exactly, also after a SIGKILL.

A change is on disk before it is made: file, old value, every value written since, and which cgroup or process it was.
`ChangeJournal.undo` puts an old value back only where the file still holds what outrace wrote, in that very cgroup: one
made anew under the same path has another inode number (kernfs never gives one out twice in a boot), a process another
start time. What somebody else wrote since stays.

One file for each change in ``STATE/changes``, written to a new name, flushed and renamed: whole, or not there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.actions.oomadj import Logger
from monitor.errors import MonitorError
from monitor.kernel.cgroupfs import GONE

#: Changes in force at a time. A node has 110 pods by default; each change is a file of less than 2 KB.
MOST = 256
#: Values of one change that are kept: more are not written, because of a value that was forgotten nobody could say any
#: more that it is outrace's.
_MOST_VALUES = 8
_MAX_VALUE = 64
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

#: What became of a change: the old value is there again; it was before (the change was never made); somebody else has
#: written since; the cgroup or process is gone; it cannot be seen from here, and stays in the journal.
RESTORED, UNCHANGED, FOREIGN, VANISHED, UNSEEN = "restored", "unchanged", "foreign", "vanished", "unseen"


@dataclass(frozen=True, slots=True)
class Change:
    """``path``: directory of a cgroup, or /proc/PID; ``file`` in it was ``old``, and ``written`` is what was (or was
    about to be) written, newest last. ``identity`` differs from that of later cgroups or processes of the same path.
    ``uid``: of the pod; ``why``: in a few words.
    """

    path: str
    file: str
    identity: str
    old: str
    written: tuple[str, ...]
    uid: str
    why: str
    boot: str

    @property
    def name(self) -> str:
        """Of its file in the journal: the same for the same file of the kernel."""
        return hashlib.sha256(os.fsencode(f"{self.path}/{self.file}")).hexdigest()[:32] + ".json"


class ChangeJournal:
    """The changes below ``state_dir``. Its methods may block and raise OSError; one thread uses it at a time."""

    def __init__(self, state_dir: Path, most: int = MOST) -> None:
        self.path = state_dir / "changes"
        self._most = most
        self._boot = boot_id()

    def change(
        self,
        path: Path,
        file: str,
        value: str,
        uid: str,
        why: str,
        identity: str = "",
        flags: int = 0,
        old: str = "",
    ) -> Change:
        """Write ``value`` to ``path/file``, and its old value to disk before. With ``identity`` only if it is that one.
        ``flags``: more of open(2). ``old``: the value to come back, if not the one that is there.

        Raises OSError where nothing was changed: the disk is full, the kernel refuses the value. MonitorError: too many
        changes, or the file has a value that cannot be kept.
        """
        with opened(path) as directory:
            found = _identity(directory, path)
            if identity and found != identity:
                raise FileNotFoundError(f"{path} is another one now")
            now = _read(directory, file)
            if len(now) > _MAX_VALUE or len(value) > _MAX_VALUE:
                raise MonitorError(f"{path / file}: {now[:40]!r} is too long to be kept")
            made = Change(str(path), file, found, old or now, (value,), uid, why, self._boot)
            before = self._entry(made)
            if before is not None:
                # Twice the same file: the value before the first change is the one to come back. Somebody else's since
                # then is his own.
                made = made if now not in (before.old, *before.written) else _extended(before, value)
            elif len(self._names()) >= self._most:
                raise MonitorError(f"{self._most} changes are in force, which is the most", "")
            self._store(made)
            try:
                _write(directory, file, value, flags)
            except OSError:
                if before is None:
                    self.forget(made)
                raise
            return made

    def undo(self, change: Change) -> str:
        """Put the old value back where the file still has a value of ours; what became of it. The change is forgotten
        unless it could not be looked at. Raises OSError where the kernel refuses the old value.
        """
        fate = VANISHED if change.boot != self._boot else undone(change)
        if fate != UNSEEN:
            self.forget(change)
        return fate

    def forget(self, change: Change) -> None:
        (self.path / change.name).unlink(missing_ok=True)

    def is_in_force(self, change: Change) -> bool:
        """Whether its file has the newest value that was written, in that very cgroup or process."""
        try:
            with opened(Path(change.path)) as directory:
                same = _identity(directory, Path(change.path)) == change.identity
                return same and _read(directory, change.file) == change.written[-1]
        except OSError:
            return False

    def load(self, on_problem: Callable[[str], object] = lambda _: None) -> list[Change]:
        """All changes that are not undone. A file that cannot be read is left where it is."""
        found = []
        for name in self._names():
            path = self.path / name
            try:
                found.append(_parsed(path))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, TypeError, LookupError) as error:
                on_problem(f"{path}: {type(error).__name__}: {error}; what it changed cannot be undone: remove it")
        return found

    def undo_all(self, on_problem: Callable[[str], object] = lambda _: None) -> list[tuple[Change, str]]:
        """Undo what a daemon before left, or this one has in force: every change, and what became of it."""
        found = []
        for change in self.load(on_problem):
            try:
                found.append((change, self.undo(change)))
            except OSError as error:
                on_problem(f"{change.path}/{change.file} cannot be set back to {change.old}: {error.strerror}")
        return found

    def _entry(self, change: Change) -> Change | None:
        """What is in the journal of the same file of the same cgroup."""
        try:
            found = _parsed(self.path / change.name)
        except (OSError, ValueError, TypeError, LookupError):
            return None
        return found if (found.identity, found.boot) == (change.identity, change.boot) else None

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self.path) if name.endswith(".json") and name[0] != ".")
        except FileNotFoundError:
            return []

    def _store(self, change: Change) -> None:
        """On disk, also if the power fails now: the file, and the directory that names it."""
        self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
        new = self.path / f".{change.name}.new"
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "w") as file:
                json.dump(asdict(change), file)
                file.flush()
                os.fsync(fd)
            os.replace(new, self.path / change.name)
        except OSError:
            with suppress(OSError):
                new.unlink()
            raise
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def undo_left(state_dir: Path, log: Logger) -> None:
    """Undo what a daemon before left in force, and log it."""
    for half in (state_dir / "changes").glob(".*.new"):  # of a daemon that was killed as it wrote: nothing was changed
        half.unlink(missing_ok=True)
    try:
        found = ChangeJournal(state_dir).undo_all(
            lambda problem: log("error", "a change of an earlier daemon is not undone", problem=problem)
        )
    except OSError as error:
        log("error", "changes of an earlier daemon cannot be read", problem=str(error))
        return
    for change, fate in found:
        fields = {"cgroup": change.path, "file": change.file, "value": change.old, "uid": change.uid}
        log("info", "a change of an earlier daemon is undone", **fields, outcome=fate, was_for=change.why)


def boot_id() -> str:
    """Changes of an earlier boot are gone with it, and its inode numbers are given out again."""
    return Path(_BOOT_ID).read_text().strip()


def identity_of(path: Path) -> str:
    """Which cgroup or process is at ``path`` now. Raises OSError."""
    with opened(path) as directory:
        return _identity(directory, path)


def value_of(file: str, text: str) -> str:
    """The value of ``file`` as it would be written, by the ``text`` of `source_of` it."""
    if file == "memory.oom_control":  # three lines; the first is "oom_kill_disable 0"
        return text.split()[1]
    if file == "freezer.state":
        return "THAWED" if text.strip() == "0" else "FROZEN"
    return text.strip()


def source_of(file: str) -> str:
    """The file that says what ``file`` of the same directory was set to: itself but for v1's freezer.state, which is
    FROZEN also where only a parent is.
    """
    return "freezer.self_freezing" if file == "freezer.state" else file


def _extended(change: Change, value: str) -> Change:
    written = (*(one for one in change.written if one != value), value)
    if len(written) > _MOST_VALUES:
        raise MonitorError(f"{change.path}/{change.file} was changed {_MOST_VALUES} times", "undo it first")
    return replace(change, written=written)


def undone(change: Change) -> str:
    """Put the old value back where the file has one of ours, in that very cgroup or process; what became of it. Raises
    OSError where the kernel refuses the old value.
    """
    path = Path(change.path)
    try:
        with opened(path) as directory:
            if _identity(directory, path) != change.identity:
                return VANISHED
            now = _read(directory, change.file)
            if now == change.old:
                return UNCHANGED
            if now not in change.written:
                return FOREIGN
            _write(directory, change.file, change.old)
            return RESTORED
    except ProcessLookupError:
        return VANISHED
    except OSError as error:
        if error.errno not in GONE:
            raise
    return VANISHED if is_seen(path.parent) else UNSEEN


def is_seen(path: Path) -> bool:
    """Whether what was in ``path`` would be seen from here, were it there. Not from another mount namespace, nor from a
    cgroup namespace below the root: there the next directory that is there is a cgroup's too, but of another one.
    """
    if (path / "cgroup.procs").exists() or path == Path("/proc"):
        return True
    top = next(one for one in path.parents if one.is_dir())
    while (top.parent / "cgroup.procs").exists():
        top = top.parent
    if (top / "cgroup.controllers").exists():
        return not (top / "cgroup.events").exists()  # v2: every cgroup but the root has it
    return (top / "release_agent").exists()  # v1: the root alone has it


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The directory itself: what is opened below it is of this cgroup, whatever appears under its path meanwhile."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield directory
    finally:
        os.close(directory)


def _identity(directory: int, path: Path) -> str:
    """Inode numbers of /proc are given out again: a process is known by its start (field 22 of its stat)."""
    if path.parent == Path("/proc"):
        return "started " + _read(directory, "stat").rpartition(")")[2].split()[19]
    return f"inode {os.fstat(directory).st_ino}"


def _read(directory: int, file: str) -> str:
    fd = os.open(source_of(file), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        return value_of(file, os.read(fd, 4096).decode(errors="replace"))
    finally:
        os.close(fd)


def _write(directory: int, file: str, value: str, flags: int = 0) -> None:
    fd = os.open(file, flags | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _parsed(path: Path) -> Change:
    change = parsed(documents.from_json(documents.decoded(documents.read_bytes(path))))
    if path.name != change.name:
        raise ValueError("its name is not that of its content")
    return change


def parsed(made: dict[str, Any]) -> Change:
    """A change from what `dataclasses.asdict` made of it. Raises ValueError, TypeError or LookupError."""
    change = Change(**{**made, "written": tuple(made["written"])})
    if not all(isinstance(one, str) for one in (*asdict(change).values(), *change.written) if one != change.written):
        raise ValueError("every value must be text")
    if not Path(change.path).is_absolute() or "/" in change.file or change.file in ("", ".", ".."):
        raise ValueError("not a file of a cgroup or process")
    if not change.written:
        raise ValueError("nothing was written")
    return change

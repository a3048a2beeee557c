"""The owners of pinned BPF objects. Each state dir has one *instance*: a directory of pins under `pins.ROOT`.

Pins outlive the daemon, so that the OOM programs are attached while it restarts; `outrace unload` removes them. A
process that uses an instance holds flock(2) on its directory, from before it is loaded until the process ends, and a
symbolic link ``owner`` names the state dir: bpffs itself records both, for every process that sees the pins.

Where systemd did not mount bpffs, every user may make directories in it (mode 1777), and any user may lock a directory
that it can open. So `pins.ROOT` is for root alone: neither the pins nor the locks of another user count.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from monitor.errors import CannotError, MonitorError, remedy_of
from monitor.kernel import pins

#: The link in an instance's directory. Its target is text, and no path: nothing that follows links comes to files.
OWNER, _OF = "owner", "of "
#: <linux/fs.h>, <fcntl.h>.
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100
#: How often another user's directory is exchanged for ours: only one that vanishes at that moment takes another try.
_TRIES = 100
#: A check whether an instance is in use holds its lock for microseconds; a daemon that starts waits for that.
_PATIENCE_S = 2.0


class Instance(NamedTuple):
    """One directory of pins. ``state_dir``: None where it is not known."""

    path: Path
    state_dir: Path | None
    in_use: bool
    pins: int


def instance_directory(state_dir: Path) -> Path:
    """Pins of one state dir; the name may not contain dots (bpffs reserves them)."""
    return pins.ROOT / hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:12]


def claim(instance: Path, state_dir: Path) -> None:
    """Record the owner of an instance, before there is a pin in it. Raises CannotError."""
    path = state_dir.resolve()
    try:
        _make(instance)
        if owner(instance) == path:
            return
        fresh = instance / f"{OWNER}_{os.getpid()}"
        fresh.symlink_to(f"{_OF}{path}")
        fresh.rename(instance / OWNER)
    except OSError as error:
        why = f"{error.filename}: {error.strerror}: it has to say whose the pins in {instance} are"
        remedy = "a state dir with a shorter path" if error.errno == errno.ENAMETOOLONG else "mount bpffs writable"
        raise CannotError(why, remedy_of(error.errno, remedy)) from None


def _make(instance: Path) -> None:
    """Make the directory, in a `pins.ROOT` that is root's alone. Raises OSError."""
    root = instance.parent  # the loader is a process of its own, and has its caller's
    for _ in range(_TRIES):
        with suppress(FileExistsError):
            root.mkdir(mode=0o700)
        status = os.lstat(root)
        if _is_roots(status):
            if status.st_mode & 0o077:  # of a version before this
                root.chmod(0o700)
            instance.mkdir(mode=0o700, exist_ok=True)
            return
        aside = root.with_name(f"outrace_of_user_{status.st_uid}_{os.getpid()}_{time.monotonic_ns()}")
        aside.mkdir(mode=0o700)
        _exchange(aside, root)  # or what is there is gone again
        with suppress(OSError):  # a directory that is not empty stays, however deep the user made it
            (aside.rmdir if aside.is_dir() and not aside.is_symlink() else aside.unlink)()
    raise OSError(errno.EPERM, f"user {status.st_uid} makes it again and again: stop that user's processes", root)


def _exchange(one: Path, other: Path) -> None:
    """Let two paths change places at once, so that no other process can make one of them in between; nothing where
    either is not there.
    """
    libc = ctypes.CDLL(None)
    libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)


def _is_roots(status: os.stat_result) -> bool:
    """Whether a directory of pins is one that no other user made or may write to."""
    mine = status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and mine


def owner(instance: Path) -> Path | None:
    """The state dir (resolved) that an instance is of; None where that is not known."""
    with suppress(OSError):
        text = os.readlink(instance / OWNER)
        return Path(text.removeprefix(_OF)) if text.startswith(f"{_OF}/") else None
    return None


def hold(instance: Path) -> int:
    """Make the directory, and hold it until the returned descriptor is closed. Raises MonitorError if others do."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            _make(instance)
            fd = _try_hold(instance)
        except FileNotFoundError:
            continue  # removed between the two
        except OSError as error:
            raise MonitorError(f"{instance} cannot be held: {error.strerror}", remedy_of(error.errno, "")) from None
        if fd is not None:
            return fd
        if time.monotonic() > deadline:
            other = "another outrace, whose state directory has the same path in another mount namespace"
            raise MonitorError(
                f"the pins in {instance} are in use by {other}", "name another directory with --state-dir"
            )
        time.sleep(0.01)


def release(fd: int, instance: Path) -> None:
    """Hold it no more; the directory goes if nothing was pinned in it."""
    if not pinned(instance):
        with suppress(OSError):
            remove(instance)
    os.close(fd)


def _try_hold(instance: Path) -> int | None:
    """A descriptor that holds it, None while another does. Raises OSError."""
    fd = os.open(instance, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_ino == os.stat(instance).st_ino:
            return fd
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(instance))  # removed, and made again
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise


def survey() -> list[Instance]:
    """Every instance here, by name; none where bpffs is not mounted or may not be read, or is another user's."""
    try:
        names = sorted(os.listdir(pins.ROOT)) if _is_roots(os.lstat(pins.ROOT)) else []
    except OSError:
        return []
    found = []
    for path in (pins.ROOT / name for name in names):
        with suppress(OSError):  # removed meanwhile
            fd = _try_hold(path)
            if fd is not None:
                os.close(fd)
            found.append(Instance(path, owner(path), fd is None, pinned(path)))
    return found


def pinned(instance: Path) -> int:
    """How many objects are pinned in it."""
    return sum(len(files) for directory, _, files in os.walk(instance) if directory != str(instance))


def remove(instance: Path) -> int:
    """Remove every pin in it, which detaches what was attached by them; how many there were. Raises OSError."""
    removed = 0
    for directory, _, files in os.walk(instance, topdown=False):  # the owner last: half of it is still known
        for name in files:
            os.unlink(os.path.join(directory, name))
            removed += directory != str(instance)
        os.rmdir(directory)
    remove_empty_root()
    return removed


def remove_empty_root() -> None:
    """Leave nothing behind once the last pin is gone."""
    with suppress(OSError):  # pins of another instance, or none were ever made
        pins.ROOT.rmdir()

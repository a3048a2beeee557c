"""The programs of the live kernel, compiled and pinned once for a whole test run."""

import atexit
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from monitor.kernel import loader, mounts
from monitor.lab import janitor
from tests.puppet import Puppet as Puppet
from tests.puppet import cgroup as cgroup


def state_dir(hook: str = loader.AUTO, signals: int = loader.KUBELETS) -> Path:
    """A state dir whose BPF programs are compiled once for the whole test run; gone with it, also after kill -9.

    One for each hook and each set of formulas: a state dir holds the programs of one.
    """
    return _state_dir(hook, signals)


@cache  # which takes a call with the default for another than one that names it
def _state_dir(_hook: str, _signals: int) -> Path:
    mounts.ensure()
    directory = Path(tempfile.mkdtemp(prefix="outrace-test-state-"))
    also_remove(directory)
    also_remove(loader.instance_directory(directory))
    _shared.callback(loader.unload, loader.instance_directory(directory))
    return directory


@cache
def _watcher() -> subprocess.Popen[bytes]:
    """Removes what it is given when this process has ended, also after kill -9."""
    watcher = subprocess.Popen(
        [sys.executable, "-S", "-E", janitor.__file__, "outrace-test-no-cgroup"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )

    def end() -> None:
        watcher.stdin.close()
        watcher.wait()

    atexit.register(end)
    return watcher


def also_remove(directory: Path) -> None:
    """Remove this directory when the run has ended, also after kill -9."""
    stdin = _watcher().stdin
    stdin.write(f"dir {directory}\n".encode())
    stdin.flush()


#: What removes the pins that all tests share: the session's end, or the interpreter's.
_shared = ExitStack()
atexit.register(_shared.close)


def unload_shared() -> None:
    """Remove the pins that all tests share."""
    _shared.close()


def pin_dir(hook: str = loader.AUTO, signals: int = loader.KUBELETS) -> Path:
    """The pins of `state_dir`, loaded if they are not there. Those of the best hook are not compiled a second time for
    a caller that names it: a compilation takes an emulated guest half a minute.
    """
    best = loader.ensure_loaded(state_dir(signals=signals), loader.AUTO, signals)[0]
    if hook == loader.AUTO or hook in loader.pinned(state_dir(signals=signals)):
        return best
    return loader.ensure_loaded(state_dir(hook, signals), hook, signals)[0]

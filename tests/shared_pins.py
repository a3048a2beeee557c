"""The programs of the live kernel, compiled and pinned once for a whole test run."""

import atexit
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from monitor.kernel import loader, mounts
from tests.own_cgroups import removed_with_session


def state_dir(hook: str = loader.AUTO, formulas: int = loader.KUBELETS) -> Path:
    """A state dir whose BPF programs are compiled once for the whole test run; gone with it, also after kill -9.

    One for each hook and each set of formulas: a state dir holds the programs of one.
    """
    return _state_dir(hook, formulas)


@cache  # which takes a call with the default for another than one that names it
def _state_dir(_hook: str, _formulas: int) -> Path:
    mounts.ensure()
    directory = Path(tempfile.mkdtemp(prefix="outrace-test-state-"))
    removed_with_session(directory)
    removed_with_session(loader.instance_directory(directory))
    _shared.callback(loader.unload, loader.instance_directory(directory))
    return directory


#: What removes the pins that all tests share: the session's end, or the interpreter's.
_shared = ExitStack()
atexit.register(_shared.close)


def unload_shared() -> None:
    """Remove the pins that all tests share."""
    _shared.close()


def pin_dir(hook: str = loader.AUTO, formulas: int = loader.KUBELETS) -> Path:
    """The pins of `state_dir`, loaded if they are not there. Those of the best hook are not compiled a second time for
    a caller that names it: a compilation takes an emulated guest half a minute.
    """
    best = loader.ensure_loaded(state_dir(formulas=formulas), loader.AUTO, formulas)[0]
    if hook == loader.AUTO or hook in loader.pinned(state_dir(formulas=formulas)):
        return best
    return loader.ensure_loaded(state_dir(hook, formulas), hook, formulas)[0]

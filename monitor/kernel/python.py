"""How outrace starts Python again: as isolated as this process was started."""

from __future__ import annotations

import sys


def command(module: str, *arguments: str) -> list[str]:
    """The argv that runs a module of ours.

    The command `outrace` is started with ``-I``: neither $PYTHONPATH nor the packages of a user ($HOME) nor the working
    directory have a say in what root imports, and so it is for its children. A Python that was started with all that
    has believed it already; its children still believe no working directory.
    """
    return [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", module, *arguments]

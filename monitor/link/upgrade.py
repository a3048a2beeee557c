"""An upgrade replaces the modules below a daemon that goes on: what may not be imported or started any more.

What a process has imported stays as it was. A side that is started again would import the new modules, and read the old
hot process's configuration, counters and messages by them; so would a hot process that executes itself again.
"""

from __future__ import annotations

import os
import sys

import monitor
from monitor.errors import EXIT_CANNOT

#: Environment variable of the side with the hot process's `MINE`.
CODE = "OUTRACE_CODE"


def identity() -> str:
    """Of the modules as they are on disk now. A package manager puts a new file in place of each: another inode."""
    try:
        found = os.stat(monitor.__file__)
    except OSError:
        return "none"
    return f"{found.st_dev}:{found.st_ino}:{found.st_mtime_ns}"


#: As this process found it when it started.
MINE = identity()


def is_replaced() -> bool:
    """Whether the modules on disk are others than this process began with. One stat: 2 us."""
    return identity() != MINE


def refuse_other_code() -> None:
    """End this process, with a line on stderr, if the one that started it has other modules."""
    if os.environ.get(CODE, MINE) != MINE:
        problem = "outrace was upgraded while it runs, and its hot process has the old modules"
        print(f"outrace: error: {problem}: restart it (systemctl restart outrace)", file=sys.stderr)
        sys.exit(EXIT_CANNOT)

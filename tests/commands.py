"""Commands that a test runs to their end."""

import subprocess
from typing import Any

#: Far longer than anything takes; only a hang reaches it.
TIMEOUT_S = 240


def run(*command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """What it wrote, as text; how it ended is for the test to judge, unless it has ``check=True``."""
    options = {"capture_output": True, "text": True, "timeout": TIMEOUT_S, "check": False} | options
    return subprocess.run(command, **options)

"""Commands that a test runs to their end."""

import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from monitor.cli.main import main

#: Far longer than anything takes; only a hang reaches it.
TIMEOUT_S = 240


def run(*command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """What it wrote, as text; how it ended is for the test to judge, unless it has ``check=True``."""
    options = {"capture_output": True, "text": True, "timeout": TIMEOUT_S, "check": False} | options
    return subprocess.run(command, **options)


def called(*arguments: str) -> subprocess.CompletedProcess[str]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(list(arguments))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

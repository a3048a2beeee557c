"""Commands that a test runs to their end."""

import importlib
import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from monitor.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
#: Far longer than anything takes; only a hang reaches it.
TIMEOUT_S = 240


def run(*command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """What it wrote, as text; how it ended is for the test to judge, unless it has ``check=True``."""
    options = {"capture_output": True, "text": True, "timeout": TIMEOUT_S, "check": False} | options
    return subprocess.run(command, **options)


def without(*capabilities: str) -> tuple[str, ...]:
    """A command that runs another one without these capabilities (setpriv is in every Debian and Ubuntu)."""
    dropped = ",".join(f"-{name}" for name in capabilities)
    return ("setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}")


def script(name: str, directory: str = "scripts") -> ModuleType:
    """A module of the project's scripts, which are in no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / directory)
        return importlib.import_module(name)


def called(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of outrace in this process: one of its own takes half a second to start."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(list(arguments))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

"""`outrace` called in this process: as quick as the call, without the start of another Python."""

import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout

from monitor.cli.main import main


def called(*arguments: str) -> subprocess.CompletedProcess[str]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(list(arguments))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

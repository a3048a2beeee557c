"""Names that others chose do nothing to a terminal, whatever the command and the stream."""

import os
import sys
from pathlib import Path

import pytest

from tests.commands import run
from tests.live import outrace

#: Sets the title of the terminal, turns text around; one byte of C1; bytes that are no UTF-8.
EVIL = b"a\x1b]0;x\x07\r\xe2\x80\xae\xc2\x9b\xff"


def test_an_error_names_a_file_harmlessly(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/" + EVIL + b".yaml"
    done = outrace("config", "check", "--config", path, text=False)
    assert done.returncode == 2
    assert rb"a\u001b]0;x\u0007 \u202e\u009b\udcff.yaml: cannot be read" in done.stderr


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        # JSON, which means the same
        ("json.dumps('é\\x1b\\x9b\\u202e\\udcff', ensure_ascii=False)", '"é\\u001b\\u009b\\u202e\\udcff"'.encode()),
        # colours, lines, and what is written again
        ("'\\r1 of 2\\r'", b"\r1 of 2\\u000d"),
        ("click.style('a', 'red') + '\\tb\\nc'", b"\x1b[31ma\x1b[0m\tb\nc"),
        ("b'\\x1b\\xff'", b"\x1b\xff"),
    ],
)
def test_what_is_printed_stays_or_means_the_same(code: str, expected: bytes) -> None:
    show = f"monitor.cli.main.cli.main = lambda **_: click.echo({code}, nl=False, color=True)"
    code = f"import click, json, monitor.cli.main; {show}; monitor.cli.main.main()"
    done = run(sys.executable, "-c", code, text=False)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr

"""Names that others chose do nothing to a terminal, whatever the command and the stream."""

import json
import os
import sys
from pathlib import Path

from tests.commands import run
from tests.live import outrace

#: Sets the title of the terminal, turns text around; one byte of C1; bytes that are no UTF-8.
EVIL = b"a\x1b]0;x\x07\r\xe2\x80\xae\xc2\x9b\xff"


def test_an_error_names_a_file_harmlessly(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/" + EVIL + b".yaml"
    done = outrace("config", "check", "--config", path, text=False)
    assert done.returncode == 2
    assert rb"a\u001b]0;x\u0007 \u202e\u009b\udcff.yaml: cannot be read" in done.stderr


def printed(code: str) -> bytes:
    show = f"import click, json; monitor.cli.main.cli.main = lambda **_: {code}"
    done = run(sys.executable, "-c", f"import sys, monitor.cli.main; {show}; monitor.cli.main.main()", text=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_json_means_the_same() -> None:
    out = printed("click.echo(json.dumps('é\\x1b\\x9b\\u202e\\udcff', ensure_ascii=False))")
    assert out == '"é\\u001b\\u009b\\u202e\\udcff"\n'.encode()
    assert json.loads(out) == "é\x1b\x9b\u202e\udcff"


def test_colours_lines_and_what_is_written_again_stay() -> None:
    out = printed(
        "click.echo(click.style('a', 'red') + '\\tb\\nc', color=True) or click.echo('\\r1 of 2\\r', nl=False)"
    )
    assert out == b"\x1b[31ma\x1b[0m\tb\nc\n\r1 of 2\\u000d"


def test_bytes_go_out_as_they_are() -> None:
    assert printed("click.echo(b'\\x1b\\xff', nl=False)") == b"\x1b\xff"

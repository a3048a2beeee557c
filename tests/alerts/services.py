"""Receivers on loopback: real ones, Alertmanager and Prometheus as Debian packages them, and a stand-in of our own."""

import json
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from monitor.side.alerts.send import AlertSender
from tests.commands import ROOT
from tests.kube.fake_http import Asked, FakeServer, Reply
from tests.live import until
from tests.log_lines import LogLines
from tests.ports import reserved

DEPLOY = ROOT / "deploy"


def binary(name: str) -> str:
    """Path of a program of the monitoring packages; skips the test, with the remedy, when it is missing."""
    unpacked = ROOT / ".venv" / "tools" / "usr" / "bin" / name  # by scripts/test-tools.sh
    found = shutil.which(name) or (str(unpacked) if unpacked.exists() else None)
    if found is None:
        pytest.skip(f"{name} is not there: run scripts/test-tools.sh")
    return found


def alertmanager(directory: Path) -> str:
    """Path of an Alertmanager that runs: Debian's looks for its templates in /usr/share, which has none of them where
    the package is only unpacked. Then it is a script, below ``directory``, that shows it those in a mount namespace of
    its own.
    """
    program = Path(binary("prometheus-alertmanager"))
    templates = program.parents[1] / "share" / "prometheus"
    if Path("/usr/share/prometheus/alertmanager").exists() or not templates.exists():
        return str(program)
    script = directory / "prometheus-alertmanager"
    script.write_text(
        f"""#!/bin/sh
[ "$1" = there ] || exec unshare --mount "$0" there "$@"
shift
mount -t tmpfs tmpfs /usr/share && ln -s {templates} /usr/share/prometheus || exit 1
exec {program} "$@"
"""
    )
    script.chmod(0o755)
    return str(script)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


_NOWHERE = """
route: {receiver: nowhere, group_by: [alertname, node], group_wait: 0s, group_interval: 1s}
receivers: [{name: nowhere}]
"""


class Alertmanager:
    """A real one, not yet started, at an address that is known."""

    def __init__(self, directory: Path, config: str = _NOWHERE) -> None:
        self.directory = directory
        self.program = alertmanager(directory)
        self.port = reserved(self)
        self.url = f"http://127.0.0.1:{self.port}"
        (directory / "alertmanager.yml").write_text(config)

    @contextmanager
    def running(self) -> Iterator[None]:
        command = (
            self.program,
            f"--config.file={self.directory}/alertmanager.yml",
            f"--storage.path={self.directory}/alertmanager",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--cluster.listen-address=",
        )
        log = (self.directory / "alertmanager.log").open("wb")
        with log, subprocess.Popen(command, stdout=log, stderr=log) as child:
            try:
                until(lambda: answers(f"{self.url}/-/ready"), "Alertmanager is ready")
                yield
            finally:
                child.kill()

    def alerts(self, name: str = "", **labels: str) -> list[dict[str, Any]]:
        """What it knows to be firing under this name and these labels, silenced or not."""
        wanted = labels | ({"alertname": name} if name else {})
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return [alert for alert in found if wanted.items() <= alert["labels"].items()]


class StandIn(FakeServer):
    """Takes alerts as an Alertmanager does; not yet running, at an address that is known."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.status = 200
        super().__init__(context)
        self.refuse()

    def answer(self, asked: Asked, reply: Reply) -> None:
        reply.body(self.status, b"", {"Location": "/elsewhere"} if self.status == 302 else None)

    @contextmanager
    def running(self, status: int = 200) -> Iterator[None]:
        self.status = status
        self.listen()
        try:
            yield
        finally:
            self.refuse()

    def got(self) -> list[dict[str, Any]]:
        """Every alert so far, in order."""
        return [alert for one in list(self.asked) for alert in one.json()]


@contextmanager
def sender(*urls: str, log: LogLines | None = None) -> Iterator[AlertSender]:
    made = AlertSender(urls, log or LogLines())
    try:
        yield made
    finally:
        assert made.close(60)

"""The fake API server of tests/kube, and commands that are run against it in this process or in their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from monitor.cli.main import main
from tests.kube import conftest as kube
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_tls import Authority

authority, serving, api, stop, config = kube.authority, kube.serving, kube.api, kube.stop, kube.config
connect, client = kube.connect, kube.client
pytest_runtest_setup = kube.pytest_runtest_setup


@pytest.fixture
def kubeconfig(api: FakeApiServer, authority: Authority, tmp_path: Path) -> Path:
    api.tokens = {"good"}
    path = tmp_path / "kubeconfig"
    path.write_text(
        f"""
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{api.url}", certificate-authority: {authority.certificate}}}}}]
users: [{{name: u, user: {{token: good}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
    )
    return path


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def outrace(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """`outrace evicted ...`, in this process."""

    def outrace(*arguments: str) -> Done:
        code = main(["evicted", *arguments, "--kubeconfig", str(kubeconfig)])
        return Done(code, *capsys.readouterr())

    return outrace

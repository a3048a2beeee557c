"""The fake API server of tests/kube, and commands that are run against it in this process or in their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from monitor.cli.main import main
from tests.kube import conftest as kube

authority, serving, api, stop, config = kube.authority, kube.serving, kube.api, kube.stop, kube.config
connect, client, kubeconfig = kube.connect, kube.client, kube.kubeconfig
pytest_runtest_setup = kube.pytest_runtest_setup


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

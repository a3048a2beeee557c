"""The fake API server of tests/kube, and commands that are run against it."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.commands import called
from tests.daemon import config_files
from tests.kube import conftest as kube
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_tls import Authority

authority, serving, api, stop, config = kube.authority, kube.serving, kube.api, kube.stop, kube.config
connect, client = kube.connect, kube.client
pytest_runtest_setup = kube.pytest_runtest_setup


@pytest.fixture
def kubeconfig(api: FakeApiServer, authority: Authority, tmp_path: Path) -> Path:
    """A file, with the token "good"."""
    api.tokens = {"good"}
    return config_files.kubeconfig(tmp_path / "kubeconfig", api.url, authority.certificate, token="good")


@pytest.fixture
def outrace(kubeconfig: Path) -> Callable[..., CompletedProcess[str]]:
    """`outrace evicted ...`, in this process."""
    return lambda *arguments: called("evicted", *arguments, "--kubeconfig", str(kubeconfig))

"""The fake API server of tests/kube, and commands that are run against it."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.commands import called
from tests.kube import conftest as kube

authority, serving, api, stop, config = kube.authority, kube.serving, kube.api, kube.stop, kube.config
connect, client, kubeconfig = kube.connect, kube.client, kube.kubeconfig
pytest_runtest_setup = kube.pytest_runtest_setup


@pytest.fixture
def outrace(kubeconfig: Path) -> Callable[..., CompletedProcess[str]]:
    """`outrace evicted ...`, in this process."""
    return lambda *arguments: called("evicted", *arguments, "--kubeconfig", str(kubeconfig))

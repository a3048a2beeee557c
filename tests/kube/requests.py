"""Requests of the tests about connections, on one pod that is there."""

import pytest

from monitor.kube.client import ApiClient
from monitor.kube.resources import PODS
from tests.kube.fake_apiserver import FakeApiServer, pod


def get(client: ApiClient) -> object:
    return client.get(PODS, "a", "default")


def create(client: ApiClient) -> object:
    return client.create(PODS, pod("b"), "default")


@pytest.fixture(autouse=True)
def a_pod(api: FakeApiServer) -> None:
    api.store.create("pods", pod("a"))

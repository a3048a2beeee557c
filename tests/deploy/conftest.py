"""The package, installed for one file of tests."""

from collections.abc import Iterator

import pytest

from tests.deploy.package import installed_package


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    with installed_package():
        yield

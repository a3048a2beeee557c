"""Where incident stores of tests are."""

from tests.side.stores import fast as fast
from tests.side.stores import path as path

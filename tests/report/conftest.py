"""Where incident stores of tests are."""

from tests.report.stores import fast as fast
from tests.report.stores import path as path

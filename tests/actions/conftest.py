"""What the tests of holds share."""

from tests.hold.braked import held as held

"""What the tests of holds share."""

from tests.actions.braked import held as held

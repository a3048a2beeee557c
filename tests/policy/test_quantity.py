"""Quantities: refusals that the recorded cases do not show."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.policy.quantity import PolicyError, Quantity


@given(st.text(max_size=40))
@example("1e2147483647")
@example("1e-2147483648")
@example("9" * 5000)
@example("0" * 5000)
@example("1e" + "9" * 400)
@example("\u0661")
@example("1\u00b2")
@example("e")
@example("-e-10")
@example(".e-300")
def test_nothing_but_policy_error_on_arbitrary_text(text: str) -> None:
    try:
        str(Quantity.parse(text))
    except PolicyError:
        pass


@pytest.mark.parametrize("text", ["1e2147483647", "1e513", "1E-513", "5e9223372036854775807"])
def test_huge_exponents_are_refused_with_their_size(text: str) -> None:
    with pytest.raises(PolicyError, match=r"exponent -?[0-9]+ refused"):
        Quantity.parse(text)

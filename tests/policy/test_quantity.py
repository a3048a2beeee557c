"""Quantities: laws, refusals, and the corners the recorded cases do not show."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.policy.quantity import BINARY_SI, PolicyError, Quantity

SUFFIXES = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-2", "e+20"]
TEXTS = st.builds(
    lambda sign, whole, fraction, suffix: f"{sign}{whole}{fraction}{suffix}",
    st.sampled_from(["", "+", "-"]),
    st.integers(0, 10**25).map(str),
    st.sampled_from(["", ".", ".5", ".000001", ".123456789012"]),
    st.sampled_from(SUFFIXES),
)
QUANTITIES = TEXTS.map(Quantity.parse)


@given(QUANTITIES)
@example(Quantity.parse("15394062.5Ki"))
def test_text_without_own_spelling_is_stable(q: Quantity) -> None:
    text = str(Quantity(q.nanos, q.format))
    again = str(Quantity.parse(text))
    assert str(Quantity.parse(again)) == again
    # Bytes that no binary suffix divides are written in digits, which are read as a decimal: 15763520000 as 15763520k.
    assert again == text or (q.format == BINARY_SI and text.lstrip("-").isdigit() and text.endswith("000"))


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


@given(QUANTITIES)
def test_value_rounds_up(q: Quantity) -> None:
    exact = Fraction(q.nanos, 10**9)
    assert q.value - 1 < exact <= q.value

"""Quantities, percentages, durations and thresholds: what the recorded cases do not show."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.policy.gosyntax import parse_percentage
from monitor.policy.quantity import Quantity
from monitor.policy.signals import KUBELET_SIGNALS
from monitor.policy.thresholds import PolicyError, ThresholdValue, parse_duration, parse_flag_map, parse_thresholds


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
    with suppress(PolicyError):
        str(Quantity.parse(text))


@pytest.mark.parametrize("text", ["1e2147483647", "1e513", "1E-513", "5e9223372036854775807"])
def test_huge_exponents_are_refused_with_their_size(text: str) -> None:
    with pytest.raises(PolicyError, match=r"exponent -?[0-9]+ refused"):
        Quantity.parse(text)


@pytest.mark.parametrize("text", [" 10%", "10 %", "0x10%", "1,5%", "\u0661%", "%", "1_%", "1__0%", "1e%", "+nan%"])
def test_odd_percentages_are_refused(text: str) -> None:
    with pytest.raises(PolicyError, match="invalid syntax"):
        parse_percentage(text)


@given(st.dictionaries(st.sampled_from([*KUBELET_SIGNALS, "x"]), st.text(max_size=12)), st.text(max_size=12))
@example({"memory.available": "9" * 600 + "%"}, "")
@example({"memory.available": "1e999999999999%"}, "9" * 5000 + "h")
@example({"memory.available": "0x1p-999999999%"}, "1." + "9" * 5000 + "h")
def test_nothing_but_policy_error_on_arbitrary_maps(texts: dict[str, str], grace: str) -> None:
    for maps in ((texts, {}, {}, {}), ({}, texts, dict.fromkeys(texts, grace), {}), ({}, {}, {}, texts)):
        with suppress(PolicyError):
            parse_thresholds(*maps)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".s", 'time: invalid duration ".s"'),
        ("2562047h47m16.854775808s", 'time: invalid duration "2562047h47m16.854775808s"'),
        ("1\u00e9", 'time: unknown unit "\\xc3\\xa9" in duration "1\\xc3\\xa9"'),
        ('1"', 'time: unknown unit "\\"" in duration "1\\""'),
    ],
)
def test_durations_refused(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_duration(text)
    assert str(caught.value) == message


def spelt(ns: int) -> str:
    """A duration in nanoseconds as Go writes it, without the fractions it would shorten."""
    parts = []
    for unit, size in (("h", 3600 * 10**9), ("m", 60 * 10**9), ("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)):
        count, ns = divmod(ns, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


@given(st.integers(0, 2**63 - 1))
def test_durations_read_back(ns: int) -> None:
    assert parse_duration(spelt(ns)) == ns == -parse_duration("-" + spelt(ns))
    assert parse_duration(f"{ns // 10**9}.{ns % 10**9:09d}s") == pytest.approx(ns, abs=1)  # Go's fractions are floats


def test_a_quantity_keeps_its_spelling_a_fraction_is_bytes_and_beyond_64_bits_it_is_never_met() -> None:
    (quantity,), (fraction,) = (parse_thresholds({"pid.available": text}) for text in ("1e3", "10%"))
    assert [str(one.value.shown(1000)) for one in (quantity, fraction)] == ["1e3", "100"]
    assert ThresholdValue(None, 2.0).amount(2**63 - 1) == -(2**63)


def test_flag_maps() -> None:
    assert parse_flag_map(" memory.available < 100Mi,,nodefs.available<10%") == {
        "memory.available": "100Mi",
        "nodefs.available": "10%",
    }
    assert parse_flag_map("memory.available=1m30s", "=") == {"memory.available": "1m30s"}
    assert (parse_flag_map("a<1,a<2<3"), parse_flag_map("")) == ({"a": "2<3"}, {})
    with pytest.raises(PolicyError, match=r"malformed pair 'memory[.]available', expect signal<value"):
        parse_flag_map("memory.available")

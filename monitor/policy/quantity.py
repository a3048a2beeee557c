"""Kubernetes quantities (`100Mi`, `1.5`, `2e3`): exact values with the kubelet's grammar, rounding and spelling."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

from monitor.policy.compat import INT64_MAX, INT64_MIN, int64
from monitor.policy.errors import PolicyError
from monitor.policy.signals import IN_BYTES, RESOURCE

DECIMAL_SI = "DecimalSI"
BINARY_SI = "BinarySI"
DECIMAL_EXPONENT = "DecimalExponent"

_WRONG_FORMAT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_WRONG_SUFFIX = "unable to parse quantity's suffix"
_WRONG_NUMBER = "unable to parse numeric part of quantity"

#: As lenient as the kubelet's: every part may be missing. No part is read twice: 511 zeros took 165 ms.
_TEXT = re.compile(r"[+-]?(0*+)([0-9]*+)(?:\.([0-9]*+))?+([eEinumkKMGTP]*+[+-]?[0-9]*+)")
_EXPONENT = re.compile(r"[eE][+-]?[0-9]+")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_SUFFIX = ("", *_BINARY)

_NANO = 10**9
# A 64-bit mantissa always holds 18 decimal digits; more and the kubelet changes to big decimals.
_INT64_DIGITS = 18
# The real parser allocates 10^exponent: `1e2147483647` asks it for tens of GB. No machine has 10^512 of anything.
MAX_EXPONENT = 512
MAX_LENGTH = 512


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount that compares, adds and subtracts exactly; ``str()`` is the canonical text.

    ``nanos``: in units of 1e-9; ``format``: the family of suffixes; ``text``: the spelling kept from parsing.
    """

    nanos: int
    format: str = DECIMAL_SI
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Parse a quantity; raises PolicyError with the kubelet's text (and one of our own for absurd sizes)."""
        if len(text) > MAX_LENGTH:
            raise PolicyError(f"quantity of {len(text)} characters refused: at most {MAX_LENGTH} are read")
        match = _TEXT.fullmatch(text)
        if match is None or not text:
            raise PolicyError(_WRONG_FORMAT)
        zeros, whole, fraction, suffix = match.groups("")
        return _build(text, whole or "0", fraction, *_suffix(suffix), has_digits=bool(zeros + whole + fraction))

    @classmethod
    def of_bytes(cls, n: int) -> Quantity:
        """``n`` whole units written with binary suffixes, as the kubelet shows bytes."""
        return cls(n * _NANO, BINARY_SI)

    @classmethod
    def of(cls, n: int, resource: str) -> Quantity:
        """``n`` whole units of this resource, as the kubelet shows it: inodes and pids with decimal suffixes."""
        return cls(n * _NANO, BINARY_SI if resource in IN_BYTES else DECIMAL_SI)

    @property
    def value(self) -> int:
        """The amount in whole units, rounded up. Never overflows (see `int64` for the kubelet's answers)."""
        return -(-self.nanos // _NANO)

    @property
    def is_zero(self) -> bool:
        return self.nanos == 0

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __lt__(self, other: Quantity) -> bool:
        return self.nanos < other.nanos

    def __add__(self, other: Quantity) -> Quantity:
        # Zero has no family of its own: it takes that of what is added to it.
        return Quantity(self.nanos + other.nanos, self.format if self.nanos else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos - other.nanos, self.format if self.nanos else other.format)

    def int64(self, digits: int = 0) -> int:
        """`value` (of thousandths, with ``digits`` 3) in 64 bits: the kubelet's ``Value()`` and ``MilliValue()``."""
        return int64(-(-self.nanos // _pow10(9 - digits)))

    def __str__(self) -> str:
        return self.text or self._canonical()

    def kubelet_text(self) -> str:
        """``str()`` with the kubelet's defect from 1e21 on in decimal suffixes: `1` for `1000E`."""
        if self.text or self.format != DECIMAL_SI or self.nanos == 0 or self.nanos % 10**30:
            return str(self)
        digits = self.nanos // 10**30
        while digits % 1000 == 0:
            digits //= 1000
        return str(digits)

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def _canonical(self) -> str:
        """No fraction, the largest suffix that keeps it exact; binary below 1024 or with a fraction becomes decimal."""
        if self.nanos == 0:
            return "0"
        fmt = self.format
        whole, fraction = divmod(self.nanos, _NANO)
        if fmt == BINARY_SI:
            if fraction or -1024 < whole < 1024:
                fmt = DECIMAL_SI
            else:
                power = 0
                # The smallest 64-bit integer has no positive twin, so the kubelet cannot shorten it.
                while power < 6 and whole % 1024 == 0 and whole != INT64_MIN:
                    whole //= 1024
                    power += 1
                return f"{whole}{_BINARY_SUFFIX[power]}"
        digits, exponent = self.nanos, -9
        while digits % 1000 == 0 and (fmt == DECIMAL_EXPONENT or exponent < 18):
            digits //= 1000
            exponent += 3
        if fmt == DECIMAL_SI:
            return f"{digits}{_DECIMAL_SUFFIX[exponent]}"
        return f"{digits}e{exponent}" if exponent else str(digits)


ZERO = Quantity(0)


def shown(signal: str, amount: int) -> str:
    """So much of what a signal is about, as the kubelet shows it."""
    return str(Quantity.of(amount, RESOURCE[signal]))


def _pow10(exponent: int) -> int:
    return int(10**exponent)


def _suffix(suffix: str) -> tuple[int, str]:
    """The exponent (of ten, or of two for BinarySI) and the format a suffix stands for."""
    if suffix in _DECIMAL:
        return _DECIMAL[suffix], DECIMAL_SI
    if suffix in _BINARY:
        return _BINARY[suffix], BINARY_SI
    exponent = int(suffix[1:]) if _EXPONENT.fullmatch(suffix) else INT64_MAX + 1
    if exponent != int64(exponent):
        raise PolicyError(_WRONG_SUFFIX)
    if abs(exponent) > MAX_EXPONENT:
        raise PolicyError(f"quantity with exponent {exponent} refused: at most {MAX_EXPONENT} either way is read")
    return exponent, DECIMAL_EXPONENT


def _build(text: str, whole: str, fraction: str, exponent: int, fmt: str, has_digits: bool) -> Quantity:
    sign = -1 if text[0] == "-" else 1
    digits = whole + fraction
    number = int(digits)
    if fmt == BINARY_SI and not fraction and 14 - len(whole) - exponent * 3 // 10 >= 0:
        return Quantity(sign * (number << exponent) * _NANO, fmt, text if number & 7 else "")
    scale = exponent - len(fraction)
    if fmt != BINARY_SI and len(digits) <= _INT64_DIGITS and scale >= -9:
        # A spelling already canonical is kept, also one that only looks so (`1.M`, `007k`).
        keep = scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
        return Quantity(sign * number * _pow10(9 + scale), fmt, text if keep else "")
    if not has_digits:
        raise PolicyError(_WRONG_NUMBER)
    # Amounts too fine for nano units round away from zero: a request of something is never a request of nothing.
    power = 9 - len(fraction) + (exponent if fmt != BINARY_SI else 0)
    if fmt == BINARY_SI:
        number <<= exponent
    nanos = number * _pow10(power) if power >= 0 else -(-number // _pow10(-power))
    if fmt == BINARY_SI and nanos > INT64_MAX * _NANO:
        return Quantity(sign * INT64_MAX * _NANO, fmt)
    return Quantity(sign * nanos, fmt)

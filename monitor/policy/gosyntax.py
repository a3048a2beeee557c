"""Two spellings the kubelet inherits from the Go language: durations (`1m30s`) and 32-bit decimal fractions."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable

from monitor.policy.compat import INT64_MAX
from monitor.policy.errors import PolicyError

#: Nanoseconds per unit. The two micro signs are U+00B5 and U+03BC.
_UNITS = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,
    "\u03bcs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_DURATION_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^.0-9]*)")
_NUMBER = re.compile(r"[+-]?(?:0x[0-9a-f_.]+p[+-]?[0-9]+|[0-9_.]+(?:e[+-]?[0-9_]+)?|inf(?:inity)?)|nan", re.IGNORECASE)


def parse_duration(text: str) -> int:
    """A Go duration such as ``1m30s`` or ``1.5h`` in nanoseconds; raises PolicyError with Go's text."""
    negative = text.startswith("-")
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    invalid = PolicyError(f"time: invalid duration {_quote_bytes(text)}")
    if not rest:
        raise invalid
    total = 0
    while rest:
        part = _DURATION_PART.match(rest)
        if part is None or not (part[1] or part[2]):
            raise invalid
        # More than 19 digits is more than 2^63 whatever the unit, and int() refuses thousands of them.
        whole = int(part[1] or "0") if len(part[1].lstrip("0")) < 20 else INT64_MAX + 2
        if whole > INT64_MAX + 1:
            raise invalid
        if not part[3]:
            raise PolicyError(f"time: missing unit in duration {_quote_bytes(text)}")
        unit = _UNITS.get(part[3])
        if unit is None:
            raise PolicyError(f"time: unknown unit {_quote_bytes(part[3])} in duration {_quote_bytes(text)}")
        # In Go's floating point, truncated; of 18 digits, which surely fit 63 bits.
        digits = (part[2] or "")[:18]
        total += whole * unit + int(float(int(digits or 0)) * (float(unit) / 10.0 ** len(digits)))
        if total > INT64_MAX + 1:
            raise invalid
        rest = rest[part.end() :]
    if total > INT64_MAX and not negative:
        raise invalid
    return -total if negative else total


def parse_percentage(text: str) -> float:
    """What ``10%`` is, twice rounded to 32 bits: 0.10000000149011612. Raises PolicyError with Go's text."""
    return _float32(parse_float32(text.rstrip("%")) / 100)


def parse_float32(text: str) -> float:
    """A Go floating-point literal in 32 bits; raises PolicyError with Go's text. It is read in 64 bits first, so one of
    16 digits and more, half-way between two, may be rounded to the other one.
    """
    try:
        if _NUMBER.fullmatch(text) is None:
            raise ValueError(text)
        value = float.fromhex(text.replace("_", "")) if "x" in text.lower() else float(text)
        if math.isinf(value) and "n" not in text.lower():
            raise OverflowError(text)
        return _float32(value)
    except ValueError:
        raise _number_error(text, "invalid syntax") from None
    except OverflowError:
        raise _number_error(text, "value out of range") from None


def _float32(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def _number_error(text: str, what: str) -> PolicyError:
    quoted = _quoted(text, str.isprintable, lambda c: c.encode("unicode_escape").decode())
    return PolicyError(f"strconv.ParseFloat: parsing {quoted}: {what}")


def _quote_bytes(text: str) -> str:
    """The quoting of Go's time package: everything outside printable ASCII byte by byte."""
    escape = "\\x{:02x}".format
    return _quoted(text, lambda c: " " <= c < "\x80", lambda c: "".join(map(escape, c.encode(errors="surrogatepass"))))


def _quoted(text: str, is_plain: Callable[[str], bool], escape: Callable[[str], str]) -> str:
    """Go's quoted string, where some characters are as they are."""
    return '"' + "".join(f"\\{c}" if c in '"\\' else c if is_plain(c) else escape(c) for c in text) + '"'

"""For a defect of the kubelet there are two answers: its own (of 1.36, for conformance), and a sane one, ours."""

from __future__ import annotations

SANE = "sane"
KUBELET = "kubelet-1.36"

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


def int64(n: int) -> int:
    """``n`` as a signed 64-bit integer holds it: what Go's arithmetic and casts from uint64 give."""
    return (n + 2**63) % 2**64 - 2**63


def quotient(a: int, b: int) -> int:
    """a / b rounded toward zero, as Go and a shell divide integers."""
    whole = abs(a) // abs(b)
    return whole if (a < 0) == (b < 0) else -whole

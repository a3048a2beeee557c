"""Where the kubelet's answer is plainly a defect, two answers exist: its own, and a sane one.

The daemon decides with `SANE`. `KUBELET` reproduces Kubernetes 1.36 to the letter, for conformance, replay and
comparison; docs/differences.md lists every place where the two part.
"""

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

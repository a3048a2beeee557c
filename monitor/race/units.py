"""Numbers as a person reads them."""

from __future__ import annotations

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def size(n: float) -> str:
    """Bytes with three digits or so: 104 MiB, 1.5 GiB."""
    for unit, name in _UNITS:
        if abs(n) >= unit:
            value = n / unit
            return f"{value:.0f} {name}" if abs(value) >= 100 else f"{value:.1f} {name}"
    return f"{n:.0f} bytes"


def span(ns: float) -> str:
    """A length of time: 85 us, 3.1 ms, 12 s, 5 min."""
    if abs(ns) < 1e6:
        return f"{ns / 1e3:.0f} us"
    if abs(ns) < 1e9:
        return f"{ns / 1e6:.1f} ms" if abs(ns) < 1e8 else f"{ns / 1e6:.0f} ms"
    if abs(ns) < 180e9:
        return f"{ns / 1e9:.1f} s" if abs(ns) < 1e10 else f"{ns / 1e9:.0f} s"
    return f"{ns / 60e9:.0f} min"


def quantity(n: float) -> str:
    """A value to write into a configuration: whole Mi, rounded up, at least 1."""
    return f"{max(1, -(-int(n) // 2**20))}Mi"


def rate(bytes_per_s: float) -> str:
    """Growth: 120 MiB/s."""
    return f"{size(bytes_per_s)}/s"


def listed(names: list[str]) -> str:
    """a, b and c; of many the first ones and how many more."""
    if len(names) > 3:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nobody"

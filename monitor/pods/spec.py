"""What ``--pods`` can say. A module of its own because `outrace run` checks it before anything heavier is imported."""

from __future__ import annotations

_FORMS = "use cgroups or manifests:DIR"


def check_spec(spec: str) -> tuple[str, str]:
    """Split a ``--pods`` value into kind and argument; ValueError if this version has no such source."""
    kind, colon, argument = spec.partition(":")
    if kind in ("kubelet", "apiserver"):
        raise ValueError(f"{spec!r}: pods from the {kind} are not in this version; {_FORMS}")
    if kind not in ("manifests", "cgroups") or (kind == "cgroups" and colon):
        raise ValueError(f"{spec!r} is not a source of pods; {_FORMS}")
    if kind == "manifests" and not argument:
        raise ValueError(f"{spec!r} names no directory; {_FORMS}")
    return kind, argument

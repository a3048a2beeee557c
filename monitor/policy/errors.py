"""The one exception the policy raises on bad input."""

from __future__ import annotations


class PolicyError(ValueError):
    """The text or object is refused. The message is the kubelet's own where the kubelet has one."""

"""What a recording keeps of a `decision` message, and a replay makes again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ABOUT = ("id", "signal", "kind", "domain", "quantity", "available", "capacity", "grace_s", "given_s")
_WHO = ("braked", "message", "pod", "name", "observed", "trigger", "crossed_ns", "decided_ns")


def recorded(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message without what only the daemon measures."""
    return {key: message[key] for key in (*_ABOUT, *_WHO) if key in message}

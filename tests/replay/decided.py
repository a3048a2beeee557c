"""What a recording keeps of a `decision` message, and a replay makes again."""

from collections.abc import Mapping
from typing import Any

from monitor.link.messages import Decision

_ABOUT = ("id", "signal", "kind", "domain", "quantity", "available", "capacity", "grace_s", "given_s")
_WHO = ("braked", "message", "pod", "name", "observed", "trigger", "crossed_ns", "decided_ns")
_NOT_OF_LIMITS = ("domain", "quantity", "available", "capacity")


def recorded(message: Decision | Mapping[str, Any]) -> dict[str, Any]:
    """The message, or its log line, without what only the daemon measures."""
    if isinstance(message, Decision):
        others = ["message"] if message.signal is not None else [*_NOT_OF_LIMITS]
        others += [] if message.braked else ["braked"]
        message = {key: value for key, value in message._asdict().items() if key not in others}
    return {key: message[key] for key in (*_ABOUT, *_WHO) if key in message}

"""Of pods that are held, and of evictions that are held because they would not help: the events of a race."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from monitor.link.hold_messages import Held, HoldEnded
from monitor.link.messages import Braked, Released
from monitor.race import events as ev
from monitor.side.oom_events import ranked


def braked(message: Braked) -> Iterator[ev.Event]:
    """Evictions are held."""
    yield ranked(message.ts_ns, message.order)
    yield ev.Held(
        message.ts_ns,
        message.domain,
        message.signal,
        message.kind == "hard",
        message.reason,
        available=message.available,
        quantity=message.quantity,
        pods=message.pods_bytes,
        outside=message.outside_bytes,
        pod=message.victim,
        pod_name=message.name,
    )


def released(message: Released) -> Iterator[ev.Event]:
    yield ev.Held(message.ts_ns, message.domain, message.signal, message.kind == "hard", "")


def held(message: Held, left_out: int = 0) -> Iterator[ev.Event]:
    """A pod is held. Only hard thresholds hold. ``left_out``: as many messages about holds of it are no events."""
    if message.order:  # who a kubelet would take: nobody decides, so no decision has it
        yield ranked(message.ts_ns, message.order)
    yield ev.Hold(
        message.ts_ns,
        message.domain,
        message.signal,
        True,
        pod=message.pod,
        pod_name=message.name,
        hold=message.id,
        brake=message.brake,
        cap=message.cap,
        usage=message.usage,
        quantity=message.quantity,
        available=message.available,
        second_line=message.second_line,
        reason=message.reason,
        until_ns=message.until_ns,
        step=message.step,
        crossed_ns=message.crossed_ns,
        left_out=left_out,
    )


def hold_ended(message: HoldEnded, name_of: Callable[[str], str], left_out: int = 0) -> Iterator[ev.Event]:
    """``name_of(uid)`` is namespace/name; ``left_out`` as for `held`."""
    yield ev.HoldEnd(
        message.ts_ns,
        message.pod,
        message.name,
        message.id,
        message.held_ns,
        message.why,
        message.grew,
        message.usage,
        message.available,
        instead=name_of(message.other) if message.other else None,
        left_out=left_out,
    )

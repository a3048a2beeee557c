"""Metrics of pods that are held. What is counted here starts at 0 with the side."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from monitor.link.hold_messages import HELD_FOR, HOLD_ENDS
from monitor.side.export.families import counter, gauge
from monitor.side.view import View


def hold_metrics(view: View) -> Iterator[Metric]:
    holds = view.holds
    now = list(holds.now.values())
    held = {reason: sum(one.reason == reason for one in now) for reason in HELD_FOR}
    text = "Pods that are held, by why: `victim`, the policy's next, or `grows`."
    yield gauge("pods_held", text, held, "reason")
    text = "For how long the pod that is held longest has been; 0 while none is."
    yield gauge("longest_hold_seconds", text, holds.longest_s())
    begun = {reason: holds.begun[reason] for reason in HELD_FOR}
    yield counter("holds_begun", "Pods that began to be held, since the side started.", begun, "reason")
    ended = {why: holds.ended[why] for why in HOLD_ENDS}
    yield counter("holds_ended", "Holds that ended, by why, since the side started.", ended, "why")
    yield counter("held_seconds", "For how long pods were held, of holds that are over.", holds.seconds)
    text = "Bytes by which held pods grew all the same, of holds that are over."
    yield counter("held_growth_bytes", text, holds.grown_bytes)

"""The order of events: by time, then causes before effects, so that the order of arrival plays no part."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from monitor.race.events import KINDS, Event

_PLACE: dict[type, int] = {cls: i for i, cls in enumerate(KINDS.values())}


def event_key(event: Event) -> tuple[int, int, str]:
    """Sort key: time, then cause before effect, then content."""
    return (*moment(event), repr(event))


def moment(event: Event) -> tuple[int, int]:
    """Time, and cause before effect."""
    return (event.ts_ns, _PLACE[type(event)])


def in_order(events: Iterable[Event]) -> list[Event]:
    """Sorted by `event_key`. Contents are looked at only where they decide: a ranking's text is 10 KiB."""
    found = sorted(events, key=moment)
    if len(found) < 2:
        return found
    ordered: list[Event] = []
    for _, group in groupby(found, key=moment):
        same = list(group)
        ordered += same if len(same) == 1 else sorted(same, key=repr)
    return ordered

"""The undelivered changes for one receiver: a bounded queue.

No clock and no files here: times are Unix seconds given by the caller.

Two kinds of receiver. A webhook wants every change, in order. Alertmanager wants to know how things stand: only the
last change of an alert counts, and firing alerts are repeated, because Alertmanager forgets an alert that it does not
get for its ``resolve_timeout``. It notifies of no alert that was over when it got it, so an alert
raised while it was down is kept firing for a while after it got through (`Outbox.due`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import NamedTuple

from monitor.side.alerts.rules import HOLD_S, Alert

FIRING = "firing"
RESOLVED = "resolved"

#: Changes that wait for one receiver, and alerts that are firing, at most. A change takes about 1 KiB.
MAX_WAITING = 1000
MAX_ACTIVE = 1000


class Change(NamedTuple):
    """Something to be delivered. ``key``: by which it waits in the outbox; None: it does not, it is a repetition."""

    key: Hashable
    status: str
    alert: Alert

    @property
    def id(self) -> str:
        """The same at every try: a receiver recognises a repetition by it."""
        return f"{self.alert.fingerprint}-{round(self.alert.starts_at * 1000)}-{self.status}"

    @property
    def ends_at(self) -> float | None:
        """None while it is firing."""
        return self.alert.ends_at if self.status == RESOLVED else None


@dataclass(slots=True)
class _Active:
    alert: Alert  # as it was raised last
    ends_at: float | None  # when it is over; None: not known yet
    occurrences: int = 1
    acked_at: float | None = None  # when the receiver acknowledged it

    @property
    def lasts(self) -> bool:
        """It lasts until it is resolved. (Else it was a point in time, and has its end from the start.)"""
        return self.alert.ends_at is None

    def shown(self) -> Alert:
        """With what the receiver wants to know of repetitions."""
        if self.occurrences == 1:
            return self.alert
        more = {**self.alert.annotations, "occurrences": str(self.occurrences)}
        return replace(self.alert, annotations=more)


class Outbox:
    """The state for one receiver. ``every``: it wants every change (a webhook), not only how things stand.

    Not locked: the owner does that. ``dropped`` counts changes that did not fit, and those that the receiver refused.
    """

    def __init__(self, every: bool) -> None:
        self.every = every
        self.dropped = 0
        self._numbers = count()
        self._active: dict[str, _Active] = {}  # by fingerprint
        self._pending: dict[Hashable, Change] = {}  # by number, of Alertmanager by fingerprint: the last of each

    @property
    def waiting(self) -> int:
        """Changes the receiver has not acknowledged."""
        return len(self._pending)

    @property
    def firing(self) -> bool:
        return bool(self._active)

    # what happens

    def fire(self, alert: Alert) -> None:
        """Raise an alert.

        An alert that is firing already and lasts only gets the new annotations, and an end announced by `end_others` is
        cancelled. An alert with an end of its own lasts longer where its end is now later, and fires again when it
        starts at another moment: another kill.
        """
        key = alert.fingerprint
        entry = self._active.get(key)
        if entry is not None and (due := self._due(entry)) is not None and due <= alert.starts_at:
            self._settle(entry, due)  # it was over before this one began, and no `tick` had resolved it yet
            entry = None
        if entry is not None and entry.lasts and alert.ends_at is None:
            entry.alert, entry.ends_at = replace(alert, starts_at=entry.alert.starts_at), None
            return
        if entry is not None and alert.ends_at is not None and alert.starts_at == entry.alert.starts_at:
            # The same trouble, of which more is known: the alert lasts as long as the trouble.
            if not entry.lasts and alert.ends_at > (entry.ends_at or 0.0):
                entry.alert, entry.ends_at = alert, alert.ends_at
            return
        self._active.pop(key, None)
        made = self._active[key] = _Active(alert, alert.ends_at, entry.occurrences + 1 if entry is not None else 1)
        self._push(FIRING, made.shown())
        while len(self._active) > MAX_ACTIVE:
            # Alerts of pods before those of the node: a user makes any number of units.
            del self._active[min(self._active, key=lambda one: not self._active[one].alert.labels.get("pod"))]
            self.dropped += 1

    def end_others(self, keys: Collection[str], when: float) -> bool:
        """What lasts, and has none of these fingerprints, is over at ``when``, also in the future. Whether any is."""
        found = [one for key, one in self._active.items() if key not in keys and one.lasts]
        for entry in found:
            end = max(when, entry.alert.starts_at)  # a clock that was set back; Alertmanager refuses the opposite
            entry.ends_at = end if entry.ends_at is None else min(end, entry.ends_at)
        return bool(found)

    def _due(self, entry: _Active) -> float | None:
        """When the alert is to be reported as resolved; None: not known yet."""
        if self.every or entry.ends_at is None:
            return entry.ends_at
        if entry.acked_at is None:
            return None
        if not entry.lasts:
            return entry.acked_at + max(0.0, entry.ends_at - entry.alert.starts_at)
        # It was over before it was delivered: Alertmanager notifies only of what is firing for a while.
        return entry.ends_at if entry.acked_at <= entry.ends_at else entry.acked_at + HOLD_S

    def tick(self, now: float) -> float | None:
        """Resolve what is over at ``now``; returns when something is due next."""
        upcoming = []
        for entry in list(self._active.values()):
            due = self._due(entry)
            if due is not None and due <= now:
                self._settle(entry, due)
            elif due is not None:
                upcoming.append(due)
        return min(upcoming, default=None)

    def batch(self, limit: int) -> list[Change]:
        """What to send next: for a webhook the oldest change, for Alertmanager the last of each of ``limit`` alerts."""
        return list(islice(self._pending.values(), 1 if self.every else limit))

    def repeats(self) -> list[Change]:
        """All that is firing, to be sent again (``key`` None). Also what never got through because it was dropped."""
        return [Change(None, FIRING, entry.shown()) for entry in self._active.values()]

    def ack(self, changes: Iterable[Change], now: float) -> None:
        """The receiver acknowledged these changes."""
        for change in changes:
            self._remove(change)
            entry = self._active.get(change.alert.fingerprint) if change.status == FIRING else None
            if entry is not None and entry.acked_at is None and entry.alert.starts_at == change.alert.starts_at:
                entry.acked_at = now

    def refuse(self, change: Change) -> None:
        """The receiver refuses this change for ever: drop and count it, and forget the alert that it raised."""
        self.dropped += self._remove(change)
        if change.status == FIRING:
            self._active.pop(change.alert.fingerprint, None)

    def _remove(self, change: Change) -> bool:
        """False if it waits no more: a newer one has its place."""
        found = self._pending.get(change.key) is change
        if found:
            del self._pending[change.key]
        return found

    def _settle(self, entry: _Active, due: float) -> None:
        """The alert is over and reported as such, an event with ``due`` as its end."""
        del self._active[entry.alert.fingerprint]
        self._push(RESOLVED, replace(entry.shown(), ends_at=entry.ends_at if entry.lasts else due))

    def _push(self, status: str, alert: Alert) -> None:
        key = next(self._numbers) if self.every else alert.fingerprint
        self._pending.pop(key, None)
        self._pending[key] = Change(key, status, alert)
        while len(self._pending) > MAX_WAITING:
            del self._pending[min(self._pending, key=self._worth)]
            self.dropped += 1

    def _worth(self, key: Hashable) -> tuple[bool, bool]:
        """The change with the smallest value is dropped first, of several the oldest."""
        change = self._pending[key]
        return not change.alert.labels.get("pod"), change.status != RESOLVED

"""The undelivered changes for one receiver: a bounded queue.

No clock and no files here: times are Unix seconds given by the caller.

Two kinds of receiver. A webhook wants every change, in order. Alertmanager wants to know how things stand: only the
last change of an alert counts, and firing alerts are repeated, because Alertmanager forgets an alert that it does not
get for its ``resolve_timeout``. It notifies of no alert that was over when it got it, so an alert
raised while it was down is kept firing for a while after it got through (`Outbox.due`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from monitor.side.alerts.rules import HOLD_S, Alert

FIRING = "firing"
RESOLVED = "resolved"

#: Changes that wait for one receiver, and alerts that are firing, at most. A change takes about 1 KiB.
MAX_WAITING = 1000
MAX_ACTIVE = 1000


class Change(NamedTuple):
    """Something to be delivered. ``seq`` is unique within the outbox, and grows."""

    seq: int
    status: str
    alert: Alert

    @property
    def id(self) -> str:
        """The same at every try: a receiver recognises a repetition by it."""
        return f"{self.alert.fingerprint}-{round(self.alert.starts_at * 1000)}-{self.status}"


@dataclass(slots=True)
class _Active:
    alert: Alert  # as it was raised last
    hold_s: float | None  # of an event that is a point in time; None: it lasts until it is resolved
    ends_at: float | None
    acked_at: float | None = None  # when the receiver acknowledged it
    occurrences: int = 1

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
        self._seq = 0
        self._active: OrderedDict[str, _Active] = OrderedDict()
        self._pending: OrderedDict[int, Change] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Changes the receiver has not acknowledged."""
        return len(self._pending)

    @property
    def firing(self) -> bool:
        return bool(self._active)

    # what happens

    def fire(self, alert: Alert) -> bool:
        """Raise an alert; False if it need not be delivered again.

        An alert that is firing already and lasts only gets the new annotations, and an end announced by `end_others` is
        cancelled. An alert with an end of its own lasts longer where its end is now later, and fires again when it
        starts at another moment: another kill.
        """
        key = alert.fingerprint
        entry = self._active.get(key)
        if entry is not None and (due := self.due(key)) is not None and due <= alert.starts_at:
            self._settle(key, due)  # it was over before this one began, and no `tick` had resolved it yet
            entry = None
        if entry is None:
            entry = _Active(alert, _hold_s(alert), alert.ends_at)
        elif alert.ends_at is None and entry.hold_s is None:
            entry.alert = replace(alert, starts_at=entry.alert.starts_at)
            entry.ends_at = None
            return False
        elif alert.ends_at is not None and alert.starts_at == entry.alert.starts_at:
            # The same trouble, of which more is known: the alert lasts as long as the trouble.
            known = entry.ends_at if entry.hold_s is not None else None
            if known is not None and alert.ends_at > known:
                entry.alert, entry.ends_at, entry.hold_s = alert, alert.ends_at, _hold_s(alert)
            return False
        else:
            entry = _Active(alert, _hold_s(alert), alert.ends_at, None, entry.occurrences + 1)
        self._active.pop(key, None)
        self._active[key] = entry
        self._push(FIRING, entry.shown())
        while len(self._active) > MAX_ACTIVE:
            # Alerts of pods before those of the node: a user makes any number of units.
            del self._active[min(self._active, key=lambda one: not self._active[one].alert.labels.get("pod"))]
            self.dropped += 1
        return True

    def end_others(self, keys: Collection[str], when: float) -> bool:
        """What lasts, and has none of these fingerprints, is over at ``when``, also in the future. Whether any is."""
        found = [one for key, one in self._active.items() if key not in keys and one.hold_s is None]
        for entry in found:
            end = max(when, entry.alert.starts_at)  # a clock that was set back; Alertmanager refuses the opposite
            entry.ends_at = end if entry.ends_at is None else min(end, entry.ends_at)
        return bool(found)

    def due(self, key: str) -> float | None:
        """When the alert is to be reported as resolved; None: not known yet."""
        entry = self._active[key]
        if entry.ends_at is None:
            return None
        if self.every:
            return entry.ends_at
        if entry.acked_at is None:
            return None
        if entry.hold_s is not None:
            return entry.acked_at + entry.hold_s
        # It was over before it was delivered: Alertmanager notifies only of what is firing for a while.
        return entry.ends_at if entry.acked_at <= entry.ends_at else entry.acked_at + HOLD_S

    def tick(self, now: float) -> float | None:
        """Resolve what is over at ``now``; returns when something is due next."""
        upcoming: float | None = None
        for key in list(self._active):
            due = self.due(key)
            if due is None:
                continue
            if due <= now:
                self._settle(key, due)
            elif upcoming is None or due < upcoming:
                upcoming = due
        return upcoming

    def batch(self, limit: int) -> list[Change]:
        """What to send next: for a webhook the oldest change, for Alertmanager the last of each of ``limit`` alerts."""
        if self.every:
            return list(self._pending.values())[:1]
        latest: dict[str, Change] = {}
        for change in self._pending.values():
            key = change.alert.fingerprint
            if key in latest or len(latest) < limit:
                latest[key] = change
        return list(latest.values())

    def repeats(self) -> list[Change]:
        """All that is firing, to be sent again (``seq`` 0). Also what never got through because it was dropped."""
        return [Change(0, FIRING, entry.shown()) for entry in self._active.values()]

    def ack(self, changes: Iterable[Change], now: float) -> None:
        """The receiver acknowledged these changes; for Alertmanager each replaces the earlier ones of its alert."""
        for change in changes:
            key = change.alert.fingerprint
            waited = self._pending.pop(change.seq, None) is not None
            if waited and not self.every:
                for seq in [n for n, each in self._pending.items() if n < change.seq and each.alert.fingerprint == key]:
                    del self._pending[seq]
            entry = self._active.get(key) if change.status == FIRING else None
            if entry is not None and entry.acked_at is None and entry.alert.starts_at == change.alert.starts_at:
                entry.acked_at = now

    def refuse(self, change: Change) -> None:
        """The receiver refuses this change for ever: drop and count it, and forget the alert that it raised."""
        if self._pending.pop(change.seq, None) is not None:
            self.dropped += 1
        if change.status == FIRING:
            self._active.pop(change.alert.fingerprint, None)

    def _settle(self, key: str, due: float) -> None:
        """The alert is over and reported as such, with ``due`` as its end where it was not known before."""
        entry = self._active.pop(key)
        # The true end, where the alert was delivered while it lasted; the end that was delivered, where not.
        ends_at = entry.ends_at if entry.ends_at is not None and entry.hold_s is None else due
        self._push(RESOLVED, replace(entry.shown(), ends_at=ends_at))

    def _push(self, status: str, alert: Alert) -> None:
        self._seq += 1
        self._pending[self._seq] = Change(self._seq, status, alert)
        while len(self._pending) > MAX_WAITING:
            del self._pending[min(self._pending, key=self._worth)]
            self.dropped += 1

    def _worth(self, seq: int) -> tuple[bool, bool, int]:
        """The change with the smallest value is dropped first."""
        change = self._pending[seq]
        return not change.alert.labels.get("pod"), change.status != RESOLVED, seq


def _hold_s(alert: Alert) -> float | None:
    return None if alert.ends_at is None else max(0.0, alert.ends_at - alert.starts_at)

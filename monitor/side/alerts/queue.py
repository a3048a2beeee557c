"""What one receiver is still to be told: a bounded queue of changes that survives a restart.

No clock and no files here: times are Unix seconds given by the caller, and everything that changed is put down as an
operation (a small dict), which `monitor.side.alerts.journal` writes and a later process replays.

Two kinds of receiver. A webhook wants every change, in order. Alertmanager wants to know how things stand: only the
last change of an alert counts, and what is firing is said again and again, because Alertmanager forgets what it does
not hear of for its ``resolve_timeout``. It tells nobody of an alert that was over before it heard of it, so an alert
raised while it was down is kept firing for a while after it got through (`Outbox.due`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from monitor.side.alerts.rules import HOLD_S, Alert

FIRING = "firing"
RESOLVED = "resolved"

#: Changes that wait for one receiver, and alerts that are firing, at most. A change takes about 1 KiB.
MAX_WAITING = 1000
MAX_ACTIVE = 1000
#: An alert that is over by itself is extended by this many seconds at least: an incident is judged again up to 7 times
#: a second, and each time would be a line in the journal.
EXTEND_S = 10.0
#: Operations not yet written down; when more pile up (a disk that hangs), one snapshot replaces them all.
MAX_OPERATIONS = 4000

Operation = dict[str, Any]


class Change(NamedTuple):
    """Something the receiver is to hear. ``seq`` is unique within the outbox, and grows."""

    seq: int
    status: str
    alert: Alert

    @property
    def id(self) -> str:
        """The same at every try, also after a restart: a receiver can tell a repetition by it."""
        return f"{self.alert.fingerprint}-{round(self.alert.starts_at * 1000)}-{self.status}"


@dataclass(slots=True)
class _Active:
    alert: Alert  # as it was raised last
    hold_s: float | None  # of an event that is a point in time; None: it lasts until it is resolved
    ends_at: float | None
    acked_at: float | None = None  # when the receiver took it
    occurrences: int = 1

    def shown(self) -> Alert:
        """With what the receiver wants to know of repetitions."""
        if self.occurrences == 1:
            return self.alert
        more = {**self.alert.annotations, "occurrences": str(self.occurrences)}
        return replace(self.alert, annotations=more)


class Outbox:
    """The state for one receiver. ``every``: it wants every change (a webhook), not only how things stand.

    Not locked: the owner does that. ``dropped`` counts changes that were given up for lack of room.
    """

    def __init__(self, every: bool) -> None:
        self.every = every
        self.dropped = 0
        self.operations: list[Operation] = []
        self.overrun = False  # operations were thrown away: only a snapshot can be written now
        self._seq = 0
        self._active: OrderedDict[str, _Active] = OrderedDict()
        self._pending: OrderedDict[int, Change] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Changes the receiver has not acknowledged."""
        return len(self._pending)

    @property
    def firing(self) -> bool:
        """Whether anything is."""
        return bool(self._active)

    def active(self) -> list[Alert]:
        """The alerts that are firing, whether or not the receiver has heard of them; ``ends_at`` where it is known."""
        return [replace(entry.alert, ends_at=entry.ends_at) for entry in self._active.values()]

    # what happens

    def fire(self, alert: Alert) -> bool:
        """Raise an alert; False if the receiver need not hear of it again.

        One that is firing already and lasts is only brought up to date (annotations, and an end announced by `end` is
        taken back). One that is over by itself goes on where it now ends later (by `EXTEND_S` at least), and fires
        again when it starts at another moment: another kill.
        """
        key = alert.fingerprint
        entry = self._active.get(key)
        if entry is not None and (due := self.due(key)) is not None and due <= alert.starts_at:
            self._settle(key, due)  # it was over before this began, and nobody had looked yet
            entry = None
        if entry is None:
            entry = _Active(alert, _hold_s(alert), alert.ends_at)
        elif alert.ends_at is None and entry.hold_s is None:
            entry.alert = replace(alert, starts_at=entry.alert.starts_at)
            if entry.ends_at is not None:
                entry.ends_at = None
                self._note({"end": key, "at": None})
            return False
        elif alert.ends_at is not None and alert.starts_at == entry.alert.starts_at:
            # The same trouble, of which more is known: while it goes on, so does the alert.
            known = entry.ends_at if entry.hold_s is not None else None
            if known is not None and alert.ends_at >= known + EXTEND_S:
                self._extend(entry, alert)
                self._note({"extend": alert.to_json()})
            return False
        else:
            entry = _Active(alert, _hold_s(alert), alert.ends_at, None, entry.occurrences + 1)
        self._raise(key, entry, self._seq + 1)
        self._note({"fire": alert.to_json(), "n": entry.occurrences, "seq": self._seq})
        return True

    def end(self, key: str, when: float) -> None:
        """The alert with this fingerprint is over at ``when``, also in the future. Nothing if it is not firing."""
        entry = self._active.get(key)
        if entry is None or entry.hold_s is not None:
            return
        when = max(when, entry.alert.starts_at)  # a clock that was set back; Alertmanager refuses the opposite
        if entry.ends_at is None or when < entry.ends_at:
            entry.ends_at = when
            self._note({"end": key, "at": when})

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
        # It was over before the receiver heard of it: it has to be firing there for a while to be told to anybody.
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
        """All that is firing, to say it again (``seq`` 0). Also what never got through because it was dropped."""
        return [Change(0, FIRING, entry.shown()) for entry in self._active.values()]

    def ack(self, changes: Iterable[Change], now: float) -> None:
        """The receiver took these changes, and with each what it made obsolete."""
        for change in changes:
            if change.seq in self._pending:
                self._ack(change.seq, now)
                self._note({"ack": change.seq, "at": now})
            elif change.status == FIRING and self._heard(change.alert, now):
                self._note({"heard": change.alert.to_json(), "at": now})

    def refuse(self, change: Change) -> None:
        """The receiver will never take this change: it is dropped and counted, and an alert it raised is forgotten."""
        if self._pending.pop(change.seq, None) is not None:
            self.dropped += 1
        if change.status == FIRING:
            self._active.pop(change.alert.fingerprint, None)
        self._note({"refuse": change.seq, "fingerprint": change.alert.fingerprint, "status": change.status})

    # how it is done, the same way when it happens and when it is replayed

    def _raise(self, key: str, entry: _Active, seq: int) -> None:
        self._active.pop(key, None)
        self._active[key] = entry
        self._push(seq, FIRING, entry.shown())
        while len(self._active) > MAX_ACTIVE:
            self._active.popitem(last=False)
            self.dropped += 1

    def _extend(self, entry: _Active, alert: Alert) -> None:
        entry.alert, entry.ends_at, entry.hold_s = alert, alert.ends_at, _hold_s(alert)

    def _settle(self, key: str, due: float) -> None:
        self._resolve(key, due, self._seq + 1)
        self._note({"resolved": key, "at": due, "seq": self._seq})

    def _resolve(self, key: str, at: float, seq: int) -> None:
        entry = self._active.pop(key)
        # The true end, where the receiver was told of the alert while it lasted; the end it was shown, where not.
        ends_at = entry.ends_at if entry.ends_at is not None and entry.hold_s is None else at
        self._push(seq, RESOLVED, replace(entry.shown(), ends_at=ends_at))

    def _push(self, seq: int, status: str, alert: Alert) -> None:
        self._seq = max(self._seq, seq)
        self._pending[seq] = Change(seq, status, alert)
        while len(self._pending) > MAX_WAITING:
            oldest = next((seq for seq, change in self._pending.items() if change.status == RESOLVED), None)
            self._pending.pop(next(iter(self._pending)) if oldest is None else oldest)
            self.dropped += 1

    def _ack(self, seq: int, now: float) -> None:
        change = self._pending.pop(seq, None)
        if change is None:
            return  # dropped for lack of room while it was on its way
        key = change.alert.fingerprint
        if not self.every:
            for older in [n for n, other in self._pending.items() if n < seq and other.alert.fingerprint == key]:
                del self._pending[older]
        if change.status == FIRING:
            self._heard(change.alert, now)

    def _heard(self, alert: Alert, now: float) -> bool:
        """The receiver knows of the alert; False if that is no news."""
        entry = self._active.get(alert.fingerprint)
        if entry is None or entry.acked_at is not None or entry.alert.starts_at != alert.starts_at:
            return False
        entry.acked_at = now
        return True

    # for the journal

    def _note(self, operation: Operation) -> None:
        if len(self.operations) >= MAX_OPERATIONS:
            self.operations.clear()
            self.overrun = True
        if not self.overrun:
            self.operations.append(operation)

    def take_operations(self) -> list[Operation]:
        """What happened since the last call, to be written down; one snapshot when that was too much to keep."""
        taken, self.operations = self.operations, []
        if self.overrun:
            self.overrun = False
            return [self.snapshot()]
        return taken

    def snapshot(self) -> Operation:
        """Everything, as one operation."""
        return {
            "snapshot": self._seq,
            "active": [
                {
                    "alert": entry.alert.to_json(),
                    "hold_s": entry.hold_s,
                    "ends_at": entry.ends_at,
                    "acked_at": entry.acked_at,
                    "occurrences": entry.occurrences,
                }
                for entry in self._active.values()
            ],
            "pending": [
                {"seq": change.seq, "status": change.status, "alert": change.alert.to_json()}
                for change in self._pending.values()
            ],
        }

    def replay(self, operation: Mapping[str, Any]) -> None:
        """Do what an operation says. Raises LookupError, TypeError or ValueError for one that says nothing sensible."""
        if "snapshot" in operation:
            self._load(operation)
        elif "fire" in operation:
            alert = Alert.from_json(operation["fire"])
            entry = _Active(alert, _hold_s(alert), alert.ends_at, None, int(operation["n"]))
            self._raise(alert.fingerprint, entry, int(operation["seq"]))
        elif "extend" in operation:
            alert = Alert.from_json(operation["extend"])
            if alert.fingerprint in self._active:
                self._extend(self._active[alert.fingerprint], alert)
        elif "end" in operation:
            entry_or_none = self._active.get(operation["end"])
            if entry_or_none is not None:
                entry_or_none.ends_at = None if operation["at"] is None else float(operation["at"])
        elif "resolved" in operation:
            if operation["resolved"] in self._active:
                self._resolve(operation["resolved"], float(operation["at"]), int(operation["seq"]))
        elif "ack" in operation:
            self._ack(int(operation["ack"]), float(operation["at"]))
        elif "heard" in operation:
            self._heard(Alert.from_json(operation["heard"]), float(operation["at"]))
        elif "refuse" in operation:
            self._pending.pop(int(operation["refuse"]), None)
            if operation["status"] == FIRING:
                self._active.pop(operation["fingerprint"], None)
        else:
            raise ValueError(f"unknown operation {sorted(operation)}")

    def _load(self, snapshot: Mapping[str, Any]) -> None:
        active: OrderedDict[str, _Active] = OrderedDict()
        for item in snapshot["active"]:
            alert = Alert.from_json(item["alert"])
            active[alert.fingerprint] = _Active(
                alert,
                _number(item["hold_s"]),
                _number(item["ends_at"]),
                _number(item["acked_at"]),
                int(item["occurrences"]),
            )
        pending: OrderedDict[int, Change] = OrderedDict()
        for item in snapshot["pending"]:
            if item["status"] not in (FIRING, RESOLVED):
                raise ValueError(f"unknown status {item['status']!r}")
            pending[int(item["seq"])] = Change(int(item["seq"]), item["status"], Alert.from_json(item["alert"]))
        self._seq, self._active, self._pending = int(snapshot["snapshot"]), active, pending


def _hold_s(alert: Alert) -> float | None:
    return None if alert.ends_at is None else max(0.0, alert.ends_at - alert.starts_at)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)

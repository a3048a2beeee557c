"""What systemd's units say about stalls: ``ManagedOOMMemoryPressure=`` and ``ManagedOOMSwap=`` (systemd-oomd(8)).

The manager tells them to systemd-oomd alone, and no file has them, so outrace asks `systemctl`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from monitor.errors import CannotError, MonitorError
from monitor.policy.stall import LONGEST_GRACE_NS, OOMD_NS, OOMD_SHARE, POD, SWAP, SWAP_RULE, WINDOW_NS, Rule
from monitor.side.export.log import Log
from monitor.side.worker import Worker

_SYSTEMCTL = "/usr/bin/systemctl"
#: Seconds. An idle machine takes 0.2 s for 250 units, an emulated one 20 s.
_TIMEOUT_S = 60.0
#: Between two questions, which cost process 1 that time: a timer may start a unit every second.
_PACE_NS = 300_000_000_000
_PRESSURE, _SWAP = "ManagedOOMMemoryPressure", "ManagedOOMSwap"
_LIMIT, _DURATION = f"{_PRESSURE}Limit", f"{_PRESSURE}DurationUSec"
#: A limit is a part of this; 0: the default of oomd.conf(5), as is a duration that is not set.
_WHOLE = 2**32 - 1
_UNITS_NS = {"us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}


class Managed(NamedTuple):
    """``pressure``: cgroup below the root -> the share of time (0 to 1) and the grace (ns) of units that are to be
    killed for memory pressure. ``swap``: whether any is to be killed when swap is full.
    """

    pressure: Mapping[str, tuple[float, int]]
    swap: bool

    def rule(self, rules: Mapping[str, Rule], scope: str, cgroup: str) -> Rule | None:
        """The one of this scope, of a pod in this cgroup with what its unit says, or the nearest slice around it."""
        rule = rules.get(scope)
        if scope == SWAP and self.swap:
            return rule or SWAP_RULE
        if scope != POD or rule is None or not self.pressure:
            return rule
        places = (cgroup, *map(str, PurePosixPath(cgroup).parents))
        share, grace_ns = next((self.pressure[one] for one in places if one in self.pressure), rule[1:3])
        return rule._replace(share=share, grace_ns=grace_ns)


UNASKED = Managed({}, False)


def parse(text: str) -> Managed:
    """What `systemctl show` prints: a block of KEY=VALUE lines for each unit. What is not understood says nothing."""
    pressure, swap = {}, False
    for block in text.split("\n\n"):
        unit = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        swap = swap or unit.get(_SWAP) == "kill"
        if unit.get(_PRESSURE) == "kill" and unit.get("ControlGroup") and unit.get(_LIMIT, "0").isdecimal():
            share = int(unit.get(_LIMIT, "0")) / _WHOLE or OOMD_SHARE
            grace_ns = min(LONGEST_GRACE_NS, max(WINDOW_NS, _duration_ns(unit.get(_DURATION, ""))))
            pressure[unit["ControlGroup"]] = share, grace_ns
    return Managed(pressure, swap)


def ask() -> Managed:
    """Of all units that have a cgroup. Raises CannotError."""
    keys = ",".join(("ControlGroup", _SWAP, _PRESSURE, _LIMIT, _DURATION))
    command = (_SYSTEMCTL, "show", f"--property={keys}", "--", "*.service", "*.scope", "*.slice")
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        problem = f"what units say about memory pressure is not known: {error}"
        raise CannotError(problem, "see systemctl status") from None
    return parse(done.stdout.decode(errors="replace"))


@dataclass(eq=False)
class Units:
    """Asks for new units, in a thread of its own: a manager that has no memory either answers late."""

    log: Log
    ask: Callable[[], Managed] = ask

    def __post_init__(self) -> None:
        self.managed = UNASKED
        self._worker = Worker("units", 1, on_error=lambda error: self.log.warning(str(error)))
        self._known: frozenset[str] = frozenset()
        self._due_ns = 0

    def look(self, uids: Collection[str], now_ns: int) -> None:
        if now_ns < self._due_ns or self._known.issuperset(uids):
            return
        self._due_ns, self._known = now_ns + _PACE_NS, frozenset(uids)
        self._worker.submit(self._read)

    def _read(self) -> None:
        try:
            self.managed = self.ask()
        except MonitorError:
            self._known = frozenset()  # so that they are new the next time
            raise


def _duration_ns(text: str) -> int:
    """``1min 30s``."""
    parts = [re.fullmatch(r"(\d{1,9})(us|ms|s|min|h)", part) for part in text.split()]
    known = [int(part[1]) * _UNITS_NS[part[2]] for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else OOMD_NS

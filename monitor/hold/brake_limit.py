"""The cap of a held pod: memory.max with memory.oom.group, or on v1 memory.limit_in_bytes with memory.oom_control."""

from __future__ import annotations

import errno
from collections.abc import Callable

from monitor.hold.brake_file import BrakeFile, Planned
from monitor.hold.brake_ledger import BrakeLedger
from monitor.kernel import cgroupfs, limits
from monitor.kernel.wire import PAGE

LIMIT_FILES = ("memory.max", _V1 := "memory.limit_in_bytes")
COMPANIONS = ("memory.oom.group", "memory.oom_control")
#: A cap is no nearer to the pod's usage: between read and write, 10 us, memory at 10 GB/s grows by 0.1 MB.
ROOM = 1 << 20
#: v1 refuses a limit that the pod has passed meanwhile (EBUSY). Tries, each with twice the distance.
_TRIES = 5
#: 2: the kernel panics instead of an OOM kill at a cgroup's limit; 1: only where memory of the machine runs out
#: (check_panic_on_oom, mm/oom_kill.c).
PANIC_ON_OOM = "/proc/sys/vm/panic_on_oom"


def panics_at_cap(version: int) -> bool:
    """Whether the kernel panics, instead of a kill, at a cap on this version of cgroups; also where that is not known.
    v1's cap kills no process. It may change at any time, and a read takes 10 us.
    """
    return version == 2 and limits.number(None, PANIC_ON_OOM) not in (0, 1)


def plan_limit(
    ledger: BrakeLedger, cap: int, usage: int, attempt: int = 0, *, again: bool = False
) -> tuple[int, Planned]:
    """The cap that is to be in force (bytes; 0: none), and what is to be changed for it. ``again``: the pod is
    stopped, perhaps once more, which does not raise its cap. Raises OSError.
    """
    limit, companion = ledger.file(LIMIT_FILES), ledger.file(COMPANIONS)
    if limit is None or companion is None:
        return 0, {}
    if panics_at_cap(1 if limit.file == _V1 else 2):
        ledger.put_back(limit.file, companion.file)
        return 0, {}
    near, asked = usage + (ROOM << attempt), cap // PAGE * PAGE
    if again and limit.file == _V1 and (now := _in_force(ledger, limit)) and now >= asked:
        near = min(near, now)  # v1 kills no process at its cap
    wanted = max(asked, near // PAGE * PAGE)
    change = ledger.change(limit, str(wanted))
    own = wanted if change is None else cgroupfs.limit_of(change.old.encode())
    if own is not None and own <= wanted:
        ledger.put_back(limit.file, companion.file)
        return own, {}
    return wanted, {companion: ledger.change(companion, "1"), limit: change}


def _in_force(ledger: BrakeLedger, limit: BrakeFile) -> int:
    """The cap of ours that is there; 0 for none. Raises OSError."""
    change = ledger.changes.get(limit.file)
    return int(change.written[-1]) if change is not None and limit.read() == change.written[-1] else 0


def write_limit(ledger: BrakeLedger, planned: Planned, cap: int, capped: int, usage: Callable[[], int | None]) -> int:
    """Write what is planned, and in the ledger, for a cap of ``capped`` bytes; the cap that is in force then: 0 where
    v1 refuses every one. ``usage``: of the pod now. Raises OSError.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            ledger.write(planned)
            return capped
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        if attempt < _TRIES:
            capped, planned = plan_limit(ledger, cap, usage() or 0, attempt)
            ledger.expect(planned)
    ledger.put_back(*LIMIT_FILES, *COMPANIONS)
    return 0

"""Processes that change a pod's files as those of outrace do, and are killed: a case is one line on stdin.

``{"pod", "states": [the daemon's, another one's], "steps": [[actor, change], ...], "kills": {step: [actor, ...]},
"foreign": {path: text}, "ends": bool, "writes": int | None, "notes": bool}``. An actor is forked for it (`hot`, `side`,
or `other`: the hot process of the other daemon), makes its change, and waits; then another program writes what is
``foreign``. With ``ends`` those that live put back what is theirs; then, and else at once, all are killed. An actor may
make so many ``writes``, and is killed before the next one; without ``notes`` the kernel refuses to note anything.
Answers when no actor is left: ``done``, or that one ``ended`` before.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monitor.actions.ledger import RELAX, SIDE, BrakeLedger, Ledger, this_daemon
from monitor.actions.oom_values import MarkJournal, ScoreNotes, seen_now
from monitor.hold.pod_brake import COMPANIONS, FREEZE, LIMIT, LIMIT_FILES
from monitor.hold.soft_brake import SoftBrake
from monitor.kernel import cgroup_procs, cgroupfs
from monitor.kernel.procfs import Process
from tests.hold.braked import AUTO, PartialBrake

MIB = 1 << 20


def hold(kind: str, mib: int, state: Path, pod: Path) -> Callable[[], object]:
    brake = PartialBrake("uid", pod, cgroupfs.detect(), Ledger(state), kind)
    assert brake.apply(mib * MIB) is not None, brake.problem
    return brake.release


def moved(kind: str, state: Path, pod: Path) -> Callable[[], object]:
    brake = PartialBrake("uid", pod, cgroupfs.detect(), Ledger(state), kind)
    assert brake.apply(64 * MIB) is not None, brake.problem
    brake.apply(72 * MIB)
    brake.loosen(80 * MIB)
    brake.apply(88 * MIB)
    return brake.release


def limit(state: Path, pod: Path) -> Callable[[], object]:
    """The helper process changes the files that a hold changes."""
    version = cgroupfs.detect().version
    names = [files[0 if version == 2 else 1] for files in (LIMIT_FILES, COMPANIONS)]
    changes = BrakeLedger("uid", Ledger(state, SIDE))
    assert changes.open(pod, *names) == ""
    changes.put({names[1]: "1", names[0]: str(40 * MIB)})
    return changes.put_back


def mark(state: Path, pod: Path) -> Callable[[], object]:
    """For the OOM killer."""
    journal = MarkJournal(state)
    made = journal.mark(pod, "uid")
    assert made.raised == 1
    return lambda: journal.restore(made)


def score(state: Path, pod: Path) -> Callable[[], object]:
    """By its QoS class."""
    notes = ScoreNotes(state)
    [pid] = cgroup_procs.pids_below(pod)
    with Process(pid) as process:
        started, now = process.started(), process.oom_score_adj()
        assert started is not None
        assert now is not None
        if now == 1000:  # marked: left alone
            return notes.close
        notes.note(pod, "uid", {pid: seen_now(started, now, 500, pod, str(pod))})
        process.set_oom_score_adj(500)
    return notes.close


def soften(state: Path, pod: Path) -> Callable[[], object]:
    brake = SoftBrake("uid", pod, Ledger(state, SIDE))
    brake.soften(0, 1.0)
    return brake.harden


def relax(state: Path, pod: Path) -> Callable[[], object]:
    """For a stall: memory.high is raised from what it is."""
    changes = BrakeLedger("uid", Ledger(state, RELAX))
    assert changes.open(pod, "memory.high") == ""
    now = changes.files["memory.high"].read()
    changes.put({"memory.high": str((80 if now == "max" else int(now) // MIB + 8) * MIB)})
    return changes.put_back


CHANGES: dict[str, Callable[[Path, Path], Callable[[], object]]] = {
    "hold": lambda state, pod: hold(AUTO, 64, state, pod),
    "cap": lambda state, pod: hold(LIMIT, 56, state, pod),
    "freeze": lambda state, pod: hold(FREEZE, 0, state, pod),
    "moved hold": lambda state, pod: moved(AUTO, state, pod),
    "moved cap": lambda state, pod: moved(LIMIT, state, pod),
    "moved freeze": lambda state, pod: moved(FREEZE, state, pod),
    "limit": limit,
    "mark": mark,
    "score": score,
    "soften": soften,
    "relax": relax,
}


class Actor:
    """A process forked for one case: a change for each line, and what is to be put back for an empty one."""

    def __init__(self, state: Path, pod: Path, writes: int | None, notes: bool) -> None:
        down, up = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(down[1])
            if writes is not None:
                die_after(writes)
            if not notes:
                os.setxattr = refuse
            self._play(state, pod, os.fdopen(down[0], "r"), os.fdopen(up[1], "w", buffering=1))
        os.close(down[0])
        os.close(up[1])
        self._to, self._from = down[1], up[0]

    @staticmethod
    def _play(state: Path, pod: Path, lines: Any, answers: Any) -> None:
        this_daemon.cache_clear()
        undos = list[Callable[[], object]]()
        try:
            for line in lines:
                if line.strip():
                    undos.append(CHANGES[line.strip()](state, pod))
                else:
                    for undo in reversed(undos):
                        undo()
                print(file=answers)
        except OSError:  # refused
            pass
        finally:
            os._exit(1)

    def tell(self, line: str) -> bool:
        """Whether it made that change, and lives."""
        os.write(self._to, f"{line}\n".encode())
        return os.read(self._from, 1) == b"\n"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._to)
        os.close(self._from)


def die_after(writes: int) -> None:
    """What writes into files and attributes does so that often, and not once more."""

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal writes
            writes -= 1
            if writes < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return wrapped

    for name in ("write", "pwrite", "setxattr", "removexattr"):
        setattr(os, name, counted(getattr(os, name)))


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def play(case: dict[str, Any]) -> bool:
    """Whether every actor did what it was told."""
    pod, states = Path(case["pod"]), [Path(state) for state in case["states"]]
    how, told = (case["writes"], case["notes"]), list[bool]()
    actors = {name: Actor(states[name == "other"], pod, *how) for name in dict(case["steps"])}
    for number, (name, change) in enumerate(case["steps"]):
        if name in actors:
            told.append(actors[name].tell(change))
        for killed in case["kills"].get(str(number), ()):
            if killed in actors:
                actors.pop(killed).kill()
    for path, value in case["foreign"].items():
        Path(path).write_text(value)
    told += [actor.tell("") for actor in actors.values() if case["ends"] and all(told)]
    for actor in actors.values():
        actor.kill()
    return all(told)


if __name__ == "__main__":
    for each in sys.stdin:
        print("done" if play(json.loads(each)) else "ended", flush=True)

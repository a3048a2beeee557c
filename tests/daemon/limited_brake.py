"""A pod's brake without a kernel: the real plans of limits, on files that are strings."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from monitor.actions.changes import BrakeFile
from monitor.actions.ledger import HOT, BrakeLedger
from monitor.hold.pod_brake import COMPANIONS, LIMIT_FILES, Braked, put_limit
from monitor.kernel import cgroupfs
from tests.replay.stand_ins import StandInBrake
from tests.replay.world import World

UNLIMITED = 0x7FFFFFFFFFFFF000
LIMIT, COMPANION = LIMIT_FILES[1], COMPANIONS[1]


class StringFile(BrakeFile):
    """A file of a cgroup that takes everything."""

    def __init__(self, file: str, value: str) -> None:
        self.path, self.file, self.identity, self.value = Path("/x"), file, "inode 1", value

    def read(self) -> str:
        return self.value

    def write(self, value: str) -> None:
        self.value = value


def ledger(own: int = UNLIMITED, version: int = 1) -> BrakeLedger:
    """Of a pod whose limit is ``own`` (bytes), on cgroup v1 or v2."""
    limit, companion = LIMIT_FILES[version % 2], COMPANIONS[version % 2]
    value = "max" if version == 2 and own == UNLIMITED else str(own)
    journal = SimpleNamespace(role=HOT, note=lambda *_: None, forget=lambda _: None, others=lambda _: [])
    made = BrakeLedger("u", journal)
    made.files = {limit: StringFile(limit, value), companion: StringFile(companion, "0")}
    return made


class LimitedBrake(StandInBrake):
    """With a limit; ``cache``: bytes of page cache that it reclaims there, which are no working set."""

    kind = "limit+freeze"
    is_running = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cache = 0
        self.ledger = ledger()

    @property
    def limit(self) -> int:
        limit = self.ledger.file(LIMIT_FILES)
        return (limit and cgroupfs.limit_of(self.ledger.files[limit].read().encode())) or UNLIMITED

    def usage(self) -> int:
        return super().usage() + self.cache

    def _brake(self, how: str, cap: int) -> Braked:
        capped = put_limit(self.ledger, cap, self.usage, {}, again=how == "apply")
        self.is_capped, self.is_running = bool(capped), how == "loosen"
        return super()._brake(how, cap)._replace(cap=capped)

    def release(self) -> None:
        super().release()
        self.ledger.put_back()
        self.is_capped, self.is_running = False, True

    close = release

    def thaw(self) -> None:
        super().thaw()
        self.is_running = True


def limited_brake(world: World, uid: str, cgroup: Path, *_: object) -> LimitedBrake:
    """In the place of `World.brake`."""
    made = world.brakes[uid] = LimitedBrake(world.table, uid, cgroup)
    return made

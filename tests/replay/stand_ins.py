"""In the places of what needs a kernel: the table of watched cgroups, and the brake of a pod."""

from pathlib import Path

from monitor.hold.pod_brake import Braked


class Table:
    """Working sets by index."""

    def __init__(self) -> None:
        self.sets: dict[int, int] = {}

    def check_room(self, entries: int) -> None:
        assert entries

    def add(self, cgroup_id: int, flags: int = 0, step: int = 0, path: Path | None = None) -> int:
        return cgroup_id

    def remove(self, cgroup_id: int) -> None:
        self.sets.pop(cgroup_id, None)

    def synced(self, index: int) -> bool:
        return True

    def working_set(self, index: int) -> int:
        return self.sets.get(index, 0)

    def working_sets(self, indexes: list[int]) -> list[int]:
        return [self.working_set(index) for index in indexes]

    def crossed(self, index: int) -> int:
        return 0


class StandInBrake:
    """In the place of a pod's brake, which needs a cgroup (tests/hold/test_pod_brake.py has the real one)."""

    kind = "limit"
    problem = waits = ""
    is_held = high_is_left = runs = False
    is_clear = is_in_force = is_capped = True
    since_ns = looked_ns = opened_ns = 0

    def __init__(self, table: Table, uid: str, cgroup: Path, *_: object) -> None:
        self._table, self.uid, self.cgroup = table, uid, cgroup
        self.log: list[tuple[str, int]] = []

    def usage(self) -> int:
        return self._table.working_set(self.cgroup.stat().st_ino)

    def apply(self, cap: int) -> Braked:
        return self._brake("apply", cap)

    def loosen(self, cap: int) -> Braked:
        return self._brake("loosen", cap)

    def _brake(self, how: str, cap: int) -> Braked:
        self.log.append((how, cap))
        self.is_held = True
        return Braked("limit+freeze" if how == "apply" else "limit", cap)

    def thaw(self) -> None:
        self.log.append(("thaw", 0))

    def release(self) -> None:
        if self.is_held:
            self.log.append(("release", 0))
        self.is_held = False

    close = release

    def refresh(self) -> None:
        pass

    def adopt(self) -> bool:
        self.is_held = True
        return True

    def in_force(self) -> bool:
        return self.is_held and self.is_in_force

    def waits_for_thaw(self) -> str:
        return self.waits

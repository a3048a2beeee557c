"""The loads that `outrace bench forecast` crosses thresholds with: steady, in steps, in bursts, beside other work."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

#: What the node has, and where its thresholds are, in MiB of working set: the soft one first, then the hard one.
NODE_MIB, SOFT_MIB, HARD_MIB = 512, 352, 448
#: Where growth ends: above the hard threshold, and 24 MiB clear of the limit, so that nobody is killed.
_TOP_MIB = 488


@dataclass(frozen=True, slots=True)
class Part:
    """One process of a load: a worker (`monitor.lab.worker`), its options, and the second at which it begins."""

    worker: str
    options: dict[str, str | int] = field(default_factory=dict)
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GrowthLoad:
    """``base_mib`` is there before growth begins. ``parts`` are made for each run, by its own random numbers."""

    name: str
    story: str
    parts: Callable[[random.Random, int], list[Part]]
    base_mib: int = 60


LOADS: list[GrowthLoad] = []
_Parts = Callable[[random.Random, int], list[Part]]


def _load(base_mib: int = 60) -> Callable[[_Parts], _Parts]:
    """Declare the function below as a load; its docstring is the story. It gets the MiB there are to take."""

    def declare(parts: _Parts) -> _Parts:
        name, story = parts.__name__.strip("_").replace("_", "-"), (parts.__doc__ or "").removesuffix(".")
        LOADS.append(GrowthLoad(name, story, parts, base_mib))
        return parts

    return declare


def _hog(mib: int, rate: int, after_s: float = 0.0, **options: str | int) -> Part:
    return Part("hog", {"mib": max(1, mib), "rate": rate, **options}, after_s)


def _beside(kind: str, mib: int) -> _Parts:
    def parts(rng: random.Random, room: int) -> list[Part]:
        return [Part("load", {"kind": kind, "mib": mib}), _hog(room, 12, rng.uniform(0, 2))]

    parts.__name__, parts.__doc__ = f"leak_beside_{kind}", f"A leak of 12 MiB/s beside everyday work: {kind}."
    return parts


@_load(base_mib=310)
def leak_4(rng: random.Random, room: int) -> list[Part]:
    """A leak of 4 MiB/s."""
    return [_hog(room, 4)]


@_load(base_mib=230)
def leak_10(rng: random.Random, room: int) -> list[Part]:
    """A leak of 10 MiB/s."""
    return [_hog(room, 10)]


@_load()
def leak_20(rng: random.Random, room: int) -> list[Part]:
    """20 MiB/s."""
    return [_hog(room, 20)]


@_load()
def grows_50(rng: random.Random, room: int) -> list[Part]:
    """50 MiB/s."""
    return [_hog(room, 50)]


@_load()
def grows_100(rng: random.Random, room: int) -> list[Part]:
    """100 MiB/s."""
    return [_hog(room, 100)]


@_load()
def full_speed(rng: random.Random, room: int) -> list[Part]:
    """As fast as the kernel gives memory."""
    return [_hog(room, 0)]


@_load()
def huge_pages(rng: random.Random, room: int) -> list[Part]:
    """20 MiB/s in huge pages."""
    return [_hog(room, 20, pages="thp")]


@_load()
def tmpfs_file(rng: random.Random, room: int) -> list[Part]:
    """A file on a tmpfs, 20 MiB/s."""
    return [_hog(room, 20, kind="shmem")]


@_load(base_mib=230)
def page_tables(rng: random.Random, room: int) -> list[Part]:
    """Page tables, 12 MiB/s."""
    return [_hog(room, 12, kind="tables")]


@_load(base_mib=320)
def sockets(rng: random.Random, room: int) -> list[Part]:
    """Messages in sockets that nobody reads, 8 MiB/s."""
    return [_hog(room, 8, kind="sockets")]


@_load()
def cache_read_twice(rng: random.Random, room: int) -> list[Part]:
    """Page cache that becomes active at once, when it is read again."""
    return [_hog(room, 40, kind="file", sync=1, reread=2)]


@_load()
def readers(rng: random.Random, room: int) -> list[Part]:
    """Files of 16 MiB read again, one after the other, 1.2 s apart."""
    return [_hog(16, 100, 1.2 * n, kind="file", sync=1, reread=2) for n in range(room // 16 + 1)]


@_load()
def forks(rng: random.Random, room: int) -> list[Part]:
    """Processes of 3 MiB, one after the other."""
    return [_hog(3, 24, forks=min(200, room // 3))]


@_load()
def bursts(rng: random.Random, room: int) -> list[Part]:
    """24 MiB at 200 MiB/s at random, 1.2 s apart in the mean."""
    parts, at, left = [], 0.0, room
    while left > 0:
        at += rng.expovariate(1 / 1.2)
        parts.append(_hog(min(24, left), 200, at))
        left -= 24
    return parts


@_load()
def starts(rng: random.Random, room: int) -> list[Part]:
    """Services of 8 to 60 MiB that start at random and fill slowly, 2.5 s apart in the mean."""
    parts, at, left = [], 0.0, room
    while left > 0:
        mib = min(left, rng.randint(8, 60))
        parts.append(_hog(mib, rng.choice((10, 20, 40)), at))
        at += rng.expovariate(1 / 2.5)
        left -= mib
    return parts


@_load(base_mib=120)
def faster_and_faster(rng: random.Random, room: int) -> list[Part]:
    """Every 4 s another process that takes 4 MiB/s."""
    return [_hog(room // 5, 4, 4.0 * n) for n in range(10)]


@_load(base_mib=80)
def slower_and_slower(rng: random.Random, room: int) -> list[Part]:
    """60 MiB/s, then 20, then 8, as one process after the other is done."""
    return [_hog(room // 3, 40), _hog(room // 3, 12), _hog(room // 3 + 16, 8)]


@_load()
def second_hog(rng: random.Random, room: int) -> list[Part]:
    """8 MiB/s, and 4 to 10 s later a second process with 30."""
    return [_hog(room // 3, 8), _hog(room, 30, rng.uniform(4, 10))]


@_load(base_mib=120)
def sawtooth(rng: random.Random, room: int) -> list[Part]:
    """60 MiB up and back again and again, on a leak of 10 MiB/s."""
    return [Part("load", {"kind": "breathe", "mib": 60}), _hog(room, 10, rng.uniform(0, 3))]


@_load(base_mib=200)
def stops_half_way(rng: random.Random, room: int) -> list[Part]:
    """20 MiB/s up to a little below a threshold, a rest of 10 s, then on."""
    first = SOFT_MIB - 200 - rng.randint(10, 60)
    return [_hog(first, 20), _hog(room - first, 20, first / 20 + 10)]


for _kind, _mib in (("copy", 96), ("build", 48), ("tree", 16), ("breathe", 40), ("tmpfs", 24), ("stops", 8)):
    _load(base_mib=180)(_beside(_kind, _mib))


def room_mib(load: GrowthLoad) -> int:
    """What a load takes until it is clear above the hard threshold."""
    return _TOP_MIB - load.base_mib

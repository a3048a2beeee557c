"""How a scenario is declared (`monitor.lab.scenarios`), and what may keep a machine from playing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monitor.kernel import cgroupfs
from monitor.kernel.meminfo import multi_gen_lru
from monitor.lab.node import LabNode
from monitor.lab.truth import Truth

if TYPE_CHECKING:
    from monitor.lab.stage import Stage

Play = Callable[["Stage"], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """``story`` is one line for people. ``thresholds`` are options of `outrace run`. ``prepare`` changes the node
    before the daemon starts. ``needs``: why this machine cannot play it ("" if it can). ``ends_daemon``: each run has a
    daemon of its own.
    """

    name: str
    story: str
    truth: Truth
    play: Play
    thresholds: tuple[str, ...]
    enforce: bool = False
    node_mib: int = 160
    prepare: Callable[[LabNode], None] | None = None
    needs: Callable[[], str] = lambda: ""
    ends_daemon: bool = False


def freezer() -> str:
    """To hold a process that has been killed: the freezer of cgroup v2 lets it go."""
    remedy = "mount it, which may be beside cgroup v2: mount -t cgroup -o freezer freezer DIRECTORY"
    return "" if cgroupfs.freezer() else f"cgroup v1's freezer is not mounted; {remedy}"


def unified() -> str:
    return "" if cgroupfs.detect().version == 2 else "memory.oom.group and memory.min are of cgroup v2"


def two_lists() -> str:
    """Page cache that cannot be given back stays inactive. The multi-gen LRU makes a quarter of it active at the first
    try (Linux 6.12, 100 MiB in pipes), which counts as working set, so that a threshold is met after all.
    """
    return "page cache that cannot be given back turns active under the multi-gen LRU" if multi_gen_lru() else ""


NO_MEMORY_THRESHOLD = ("--eviction-hard", "nodefs.available<1%")
SCENARIOS: list[Scenario] = []
HOG = ("hog",)
#: Priority of a pod that is never evicted.
CRITICAL = 2_000_001_000


def hard(mib: int) -> tuple[str, ...]:
    """Only a hard threshold for memory."""
    return ("--eviction-hard", f"memory.available<{mib}Mi")


def own(signal: str, mib: int) -> tuple[str, ...]:
    """Only a hard threshold for memory by a formula of outrace's own."""
    return ("--eviction-hard", f"{signal}<{mib}Mi")


def soft(mib: int, period: str, grace_s: int = 0) -> tuple[str, ...]:
    """Only a soft threshold for memory, met for ``period`` before anybody is evicted with at most ``grace_s``."""
    return (
        *NO_MEMORY_THRESHOLD,
        *("--eviction-soft", f"memory.available<{mib}Mi"),
        *("--eviction-soft-grace-period", f"memory.available={period}"),
        *("--eviction-max-pod-grace-period", str(grace_s)),
    )


def scenario(
    thresholds: tuple[str, ...],
    verdict: str,
    *flags: str,
    evicted: tuple[str, ...] = (),
    killed: tuple[str, ...] = (),
    observed: bool = False,
    domain: str = "node",
    **rest: Any,
) -> Callable[[Play], Play]:
    """Declare the function below as a scenario of its name; its docstring is the story. ``rest``: see `Scenario`."""
    truth = Truth(verdict, frozenset(flags), evicted, killed, observed, domain)

    def declare(play: Play) -> Play:
        name, story = play.__name__.replace("_", "-"), (play.__doc__ or "").removesuffix(".")
        SCENARIOS.append(Scenario(name, story, truth, play, thresholds, **rest))
        return play

    return declare

"""How a scenario is declared (`monitor.lab.scenarios`), what may keep a machine from playing it, and what comes out of
a run held against its truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monitor.kernel import cgroupfs
from monitor.kernel.meminfo import multi_gen_lru
from monitor.lab.node import LabNode

if TYPE_CHECKING:
    from monitor.lab.stage import Stage

#: The verdict of a situation that must not be an incident at all.
NOTHING = "none"

Incident = dict[str, Any]


Play = Callable[["Stage"], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """``story`` is one line for people. ``thresholds`` are options of `outrace run`.

    The truth, which has to come out: ``flags`` are all there may be; ``evicted`` and ``killed`` name pods ("" is a
    process in no pod) in order; ``domain`` is node, kubepods, or how the path of the cgroup ends.

    ``prepare`` changes the node before the daemon starts. ``needs``: why this machine cannot play it ("" if it can).
    ``ends_daemon``: each run has a daemon of its own.
    """

    name: str
    story: str
    play: Play
    thresholds: tuple[str, ...]
    verdict: str
    flags: frozenset[str]
    evicted: tuple[str, ...] = ()
    killed: tuple[str, ...] = ()
    observed: bool = False
    domain: str = "node"
    enforce: bool = False
    node_mib: int = 160
    prepare: Callable[[LabNode], None] | None = None
    needs: Callable[[], str] = lambda: ""
    ends_daemon: bool = False


@dataclass(slots=True)
class Outcome:
    """One run: every incident it led to, and what is wrong with them ("" if nothing is)."""

    incidents: list[Incident]
    wrong: str
    metrics: dict[str, float] = field(default_factory=dict)  # after it

    @property
    def verdict(self) -> str:
        """The verdict; several are joined by a plus."""
        return "+".join(i["verdict"] for i in self.incidents) or NOTHING

    @property
    def right(self) -> bool:
        return not self.wrong


def wrong_in(truth: Scenario, stage: Stage, found: list[Incident]) -> str:
    """What is wrong with the incidents of a run ("" if nothing is)."""
    if stage.failed:
        return f"{stage.failed} ({'; '.join(str(i['summary']) for i in found) or 'no incident'})"
    if truth.verdict == NOTHING or len(found) != 1:
        want = 0 if truth.verdict == NOTHING else 1
        summaries = "; ".join(str(i["summary"]) for i in found)
        return "" if len(found) == want else f"{len(found)} incidents instead of {want}: {summaries}"
    i = found[0]
    suffix = f"-{stage.run}"
    names = {f"{pod.namespace}/{pod.name}": name for name, pod in stage.pods.items()}
    killed = tuple(dict.fromkeys(names.get(v["pod"], v["pod"] or "").removesuffix(suffix) for v in i["oom_victims"]))
    evicted = tuple(names.get(e["pod"], e["pod"]) for e in i["evicted"])
    seen = (i["verdict"], sorted(i["flags"]), evicted, killed, i["observed"])
    wanted = (truth.verdict, sorted(truth.flags), truth.evicted, truth.killed, truth.observed)
    what = ("verdict", "flags", "evicted", "killed", "observed")
    wrong = [f"{k} {got!r} instead of {want!r}" for k, got, want in zip(what, seen, wanted, strict=True) if got != want]
    if not i["domain"].endswith(truth.domain):
        wrong.append(f"domain {i['domain']!r} instead of {truth.domain!r}")
    return f"{'; '.join(wrong)} ({i['summary']})" if wrong else ""


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


#: Only a hard threshold for memory by a formula of outrace's own.
OWN = ("--eviction-hard", "memory.reclaimable<32Mi")


def soft(period: str, grace_s: int = 0) -> tuple[str, ...]:
    """Only a soft threshold for memory, met for ``period`` before anybody is evicted with at most ``grace_s``."""
    return (
        *NO_MEMORY_THRESHOLD,
        *("--eviction-soft", "memory.available<64Mi"),
        *("--eviction-soft-grace-period", f"memory.available={period}"),
        *("--eviction-max-pod-grace-period", str(grace_s)),
    )


def scenario(thresholds: tuple[str, ...], verdict: str, *flags: str, **rest: Any) -> Callable[[Play], Play]:
    """Declare the function below as a scenario of its name; its docstring is the story. ``rest``: see `Scenario`."""

    def declare(play: Play) -> Play:
        name, story = play.__name__.replace("_", "-"), (play.__doc__ or "").removesuffix(".")
        SCENARIOS.append(Scenario(name, story, play, thresholds, verdict, frozenset(flags), **rest))
        return play

    return declare

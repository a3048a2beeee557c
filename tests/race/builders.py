"""Small episodes for tests: a node of 1000 MiB with a hard threshold of 100 MiB, three pods, one of which grows."""

import json
from collections.abc import Iterable
from typing import Any

from monitor.policy.ranking import Candidate, memory_key
from monitor.race.codec import Record
from monitor.race.episode import Bounds, Episode, State, feed
from monitor.race.events import (
    NODE,
    SI_KERNEL,
    SIGKILL,
    Clear,
    Crossing,
    Decided,
    End,
    Event,
    Exit,
    Gone,
    Kill,
    KubeletEvicted,
    Mark,
    PodHeld,
    PodReleased,
    Ranked,
    Sample,
    Signalled,
    Stalled,
    Suspended,
    Watched,
)
from monitor.race.incident import Incident
from monitor.race.verdict import verdict

MI = 2**20
MS = 1_000_000
S = 1_000_000_000
#: Times of the tests begin here: a machine that has been up for a while.
T0 = 1_000 * S
CAPACITY = 1000 * MI
QUANTITY = 100 * MI
SIGNAL = "memory.available"
LINE = {"domain": NODE, "signal": SIGNAL, "hard": True, "quantity": QUANTITY, "capacity": CAPACITY}


def pod(name: str, usage: int | None, request: int = 0, priority: int = 0, critical: bool = False) -> Candidate:
    return Candidate(f"uid-{name}", "shop", name, priority, request, usage, critical)


#: First victim first: hog, then cart, then db, which is within its request; agent is critical.
PODS = tuple(
    sorted(
        [
            pod("hog", 500 * MI),
            pod("cart", 200 * MI),
            pod("db", 150 * MI, request=300 * MI),
            pod("agent", 20 * MI, critical=True),
        ],
        key=memory_key,
    )
)


def ms(t: float) -> int:
    """Milliseconds since T0 as a time of the tests."""
    return T0 + round(t * MS)


def watched(**more: Any) -> Watched:
    return Watched(**{"ts_ns": ms(-60_000), **LINE, "limit": CAPACITY, **more})


def ranked(t: float = -1000, order: tuple[Candidate, ...] = PODS) -> Ranked:
    return Ranked(ms(t), order)


#: The line of the pods together.
KUBEPODS = {"domain": "kubepods", "signal": "allocatableMemory.available"}
#: How most streams begin.
START = (watched(), ranked())
#: A container or pod at a limit of its own.
OWN = {"scope": "container", "oom_path": "/kubepods/hog/main", "oom_limit": 64 * MI, "oom_usage": 64 * MI}
OWN_POD = {**OWN, "scope": "pod", "oom_path": "/kubepods/podx"}


def sample(t: float, used_mi: float, inactive_mi: float = 0, domain: str = NODE, **more: Any) -> Sample:
    used, inactive = round(used_mi * MI), round(inactive_mi * MI)
    given: dict[str, Any] = {"pod": None, "active_file": 0, **more}
    return Sample(ts_ns=ms(t), domain=domain, usage=used, working_set=used - inactive, inactive_file=inactive, **given)


def crossing(t: float = 0, available_mi: float = 99.75, **more: Any) -> Crossing:
    """By default seen one batch of 64 pages late."""
    available = round(available_mi * MI)
    given = {"usage": CAPACITY - available, "working_set": CAPACITY - available, "available": available}
    return Crossing(**{"ts_ns": ms(t), **LINE, **given, **more})


def clear(t: float, available_mi: float = 600, **more: Any) -> Clear:
    given = {"domain": NODE, "signal": SIGNAL, "hard": True, "available": round(available_mi * MI)}
    return Clear(**{"ts_ns": ms(t), **given, **more})


def held(t: float, reason: str = "outgrown", **more: Any) -> Suspended:
    figures = {"available": 99 * MI, "quantity": 100 * MI, "pods": 16 * MI, "outside": 800 * MI} if reason else {}
    return Suspended(
        ms(t), **{"domain": NODE, "signal": "memory.available", "hard": True, "reason": reason, **figures, **more}
    )


def decided(t: float, name: str = "hog", available_mi: float = 99.75, **more: Any) -> Decided:
    available = round(available_mi * MI)
    given: dict[str, Any] = {"available": available, "usage": CAPACITY - available, "rank": 1, "grace_s": 1}
    given |= {"observed": False, "pod": f"uid-{name}", "pod_name": f"shop/{name}", "working_set": 500 * MI}
    return Decided(**{"ts_ns": ms(t), **LINE, **given, **more})


def hold(t: float, name: str = "hog", **more: Any) -> PodHeld:
    given: dict[str, Any] = {"hold": 1, "brake": "limit", "cap": 560 * MI, "usage": 510 * MI, "quantity": 100 * MI}
    given |= {"available": 99 * MI, "second_line": 25 * MI, "reason": "grows", "until_ns": ms(120_000)}
    return PodHeld(ms(t), NODE, SIGNAL, True, f"uid-{name}", f"shop/{name}", **given | more)


def hold_end(t: float, why: str, name: str = "hog", **more: Any) -> PodReleased:
    given: dict[str, Any] = {"hold": 1, "held_ns": ms(t) - ms(0.5), "grew": 3 * MI, "usage": 513 * MI}
    return PodReleased(ms(t), f"uid-{name}", f"shop/{name}", why=why, available=700 * MI, **given | more)


def stalled(t: float, **more: Any) -> Stalled:
    given: dict[str, Any] = {
        "domain": "/kubepods/web",
        "pod": "uid-web",
        "pod_name": "shop/web",
        "since_ns": T0 - 10 * S,
    }
    given |= {"share": 0.9, "cause": "uid-hog", "cause_name": "shop/hog", "why": "grew", "lacks": 33 * MI}
    return Stalled(ms(t), **{**given, "grew": 90 * MI, "available": 208 * MI, **more})


def reported(t: float, name: str = "hog") -> KubeletEvicted:
    return KubeletEvicted(ms(t), f"uid-{name}", f"shop/{name}", "The node was low on resource: memory. ")


def signalled(t: float, name: str = "hog", signal: int = SIGKILL, by: str = "outrace") -> Signalled:
    return Signalled(ms(t), f"uid-{name}", f"shop/{name}", signal, by)


def gone(t: float, name: str = "hog", freed_mi: float | None = 500, by: str = "outrace", **more: Any) -> Gone:
    freed = None if freed_mi is None else round(freed_mi * MI)
    return Gone(ms(t), f"uid-{name}", f"shop/{name}", freed, by, **more)


def mark(t: float, name: str | None = "hog", pid: int = 4242, **more: Any) -> Mark:
    """By default the node's cgroup hit its limit of 1000 MiB."""
    given: dict[str, Any] = {"victim_comm": "python3", "rss": 500 * MI, "oom_score_adj": 1000}
    given |= {"pod": f"uid-{name}" if name else None, "pod_name": f"shop/{name}" if name else None}
    given |= {"memcg": f"/kubepods/{name}/main" if name else "/system/cron", "invoker_pid": 77, "invoker_tid": 77}
    given |= {"invoker_comm": "nginx", "invoker_pod": "shop/cart", "scope": "node", "oom_path": "/node"}
    given |= {"oom_usage": CAPACITY, "oom_limit": CAPACITY, "oom_inactive_file": 0}
    return Mark(**{"ts_ns": ms(t), "victim_pid": pid, **given, **more})


def kill(t: float, name: str | None = "hog", pid: int = 4242, code: int = SI_KERNEL, **more: Any) -> Kill:
    given: dict[str, Any] = {"victim_comm": "python3", "memcg": f"/kubepods/{name}/main", "sender_pid": 77}
    given |= {"pod": f"uid-{name}" if name else None, "pod_name": f"shop/{name}" if name else None}
    given |= {"sender_comm": "bash", "si_code": code}
    return Kill(**{"ts_ns": ms(t), "victim_pid": pid, **given, **more})


def died(t: float, pid: int = 4242) -> Exit:
    return Exit(ms(t), pid, "python3")


def ended(events: Iterable[Event]) -> list[Event]:
    """A whole stream: it ends with its last event."""
    stream = list(events)
    return [*stream, End(max((event.ts_ns for event in stream), default=0))]


def episodes(*events: Event, bounds: Bounds | None = None) -> list[Episode]:
    """All episodes of a whole stream; what is open when it stops is among them."""
    state, found = State(bounds or Bounds()), list[Episode]()
    for event in ended(events):
        state, done = feed(state, event)
        found += done
    return found


def one(*events: Event) -> Episode:
    """The only episode of these events."""
    found = episodes(*events)
    assert len(found) == 1, [e.domain for e in found]
    return found[0]


def judged(*events: Event) -> Incident:
    """The verdict on the only episode of these events."""
    return verdict(one(*events))


def same_after_json(value: Record) -> bool:
    """Whether a value survives JSON text."""
    return type(value).from_json(json.loads(json.dumps(value.to_json()))) == value


def growing(since: int, until: int, start_mi: float, mi_per_s: float) -> Iterable[Sample]:
    """Ten samples of the node a second, growing on a straight line."""
    return [sample(t, start_mi + mi_per_s * (t - since) / 1000) for t in range(since, until + 1, 100)]

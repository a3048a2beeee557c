"""Any stream of events: every kind with every field, few pods, pids and domains so that they meet."""

from collections.abc import Sequence
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from monitor.race.events import (
    PLACE,
    SCOPES,
    Clear,
    Crossing,
    Decided,
    End,
    Event,
    Exit,
    Gone,
    Kill,
    Mark,
    Signalled,
    Tick,
    Watched,
)
from monitor.race.reported import Rows
from tests.race.builders import MS, T0

_BYTES = st.integers(0, 2**34)
_TEXTS: dict[str, list[str]] = {
    "domain": ["node", "kubepods", "/kubepods/a/main"],
    "signal": ["memory.available", "allocatableMemory.available"],
    "pod": ["uid-a", "uid-b"],
    "pod_name": ["shop/a", "shop/b"],
    "by": ["outrace", "kubelet"],
    "scope": list(SCOPES),
    "oom_path": ["/node", "/kubepods", "/kubepods/a/main"],
    "memcg": ["/kubepods/a/main", "/system/cron"],
    "what": ["cross", "oom", "kill", "exit", "decision", "sample"],
    "uid": ["uid-a", "uid-b"],
}
_NUMBERS: dict[str, st.SearchStrategy[int]] = {
    "ts_ns": st.integers(0, 400).map(lambda t: T0 + t * 25 * MS),
    "victim_pid": st.integers(1, 3),
    "pid": st.integers(1, 3),
    "si_code": st.sampled_from([0, 128]),
    "available": st.integers(-(2**20), 2**34),
    "oom_score_adj": st.integers(-1000, 1000),
    "signal": st.sampled_from([9, 15]),
    "grace_s": st.integers(-1, 60),
    "crossed_ns": st.integers(T0, T0 + 10**10),
    "since_ns": st.integers(T0, T0 + 10**10),
}


def _field(name: str, hint: Any) -> st.SearchStrategy[Any]:
    if hint == Rows or get_origin(hint) is Sequence:
        return st.just(())
    options = [h for h in get_args(hint) if h is not type(None)]
    if options and get_origin(hint) is not tuple:
        return st.none() | _field(name, options[0])
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        of_tuples = get_origin(item) is tuple
        return st.lists(st.tuples(_NUMBERS["ts_ns"], _BYTES) if of_tuples else _made(item), max_size=3).map(tuple)
    if hint is bool:
        return st.booleans()
    if hint is int:
        return _NUMBERS.get(name, _BYTES)
    if hint is float:
        return st.floats(0, 100)
    return st.sampled_from(_TEXTS.get(name, ["x"]))


def _made(cls: Any, **fixed: str) -> st.SearchStrategy[Any]:
    fields = {name: _field(name, hint) for name, hint in get_type_hints(cls).items()}
    return st.builds(cls, **{**fields, **{name: st.just(value) for name, value in fixed.items()}})


def events() -> st.SearchStrategy[Event]:
    """One event of any kind but the end."""
    return st.one_of([_made(cls) for cls in PLACE if cls is not End])


def streams(most: int = 40) -> st.SearchStrategy[list[Event]]:
    """Any stream, half of them mostly made of what decides a race, on the node."""
    racing = [_made(cls, domain="node") for cls in (Crossing, Decided, Clear, Watched)]
    racing += [_made(Mark, scope="node"), *(_made(cls) for cls in (Signalled, Gone, Kill, Exit))]
    ends = st.just(Tick(T0 + 200_000 * MS))  # long after the last of them, so that episodes end by themselves
    races = st.tuples(st.lists(st.one_of([*racing, *racing, events()]), max_size=most - 1), ends)
    return st.lists(events(), max_size=most) | races.map(lambda race: [*race[0], race[1]])

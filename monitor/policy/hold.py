"""Which pods are held while memory is short, how far they may grow, and when a hold ends (`--mode hold`).

docs/hold.md has the rules ("How outrace decides"); reasons that are in no rule:

* The freezer stops no system call that has begun: the cap bounds what it allocates. Each frozen pod's cap has the whole
  share, undivided (`Look.freezes`), because v2 kills a pod at its cap before it is frozen (4 pods with 1 MiB each).
* A pod sleeps in such a call (`Look.slow`, v2), and the kernel kills it at its cap. So the policy raises the cap a
  little when the pod comes near, by less than a huge page, for which no process sleeps.
* Beside a kubelet with the same line a hold has two steps: the kubelet's figures of pods are up to 15 s older than its
  figure of the node. A pod is held *above* the line until they are new enough, and then may grow *across*.

Pure: a sample in, steps out. Sizes are bytes, times ns of one clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from monitor.policy.suspension import NOISE

VICTIM, GROWS = "victim", "grows"
ABOVE, ACROSS = "above", "across"
#: Why the policy decides itself.
SECOND_LINE, TIME_LIMIT, UNANSWERED, OTHER_POD = "second_line", "time_limit", "unanswered", "other_pod"
#: Why a pod is released, besides those.
CLEAR, GONE, EVICTED = "clear", "gone", "evicted"

#: From the decision to kill until a pod grows no more: as in the advice on thresholds (docs/incidents.md).
STOP_NS = 5_000_000
#: Memory is clear for this long before the first pod is released, and before each next one.
SETTLED_NS = 500_000_000
#: Two loops of the kubelet: if it has evicted no pod by then, it will not.
LOOPS_NS = 20_000_000_000
#: The kubelet ranks pods by no older figures: cAdvisor samples every 10 to 15 s.
FIGURES_NS = 15_000_000_000
#: Pods are held this far above the kubelet's line: growth until the brake (0.5 ms at 10 GiB/s is 5 MiB) and after it.
MARGIN = 16 << 20
#: Pods are stopped this far across it, or this long after: 0.2 MiB across was clear before the kubelet's next sample.
DEPTH, CROSSING_NS = 4 << 20, 100_000_000
#: Their caps end this far across it: growth from sample to sample and until the stop (0.8 ms at 10 GiB/s is 8 MiB).
BEYOND = 16 << 20
#: A slowed pod gets a cap so far above its usage when it is so near: samples are 5 ms apart, 100 threads take 25 MiB/s.
CREEP, _NEAR = 7 << 18, 1 << 20
#: A pod that has this part of the growth is held at once; during a hold, one that grows by that part of the headroom.
_PART, _LEFT_PART = 8, 16
#: A pod that grew by less in the last 0.05 s stands still: a CPU charges this much ahead for a cgroup.
_STANDS = 256 << 10
#: Headroom above a threshold that counts as clear: a part of the threshold, within these bounds.
_LEAST_ROOM, _MOST_ROOM, _ROOM_PART = 2 << 20, 32 << 20, 8


class Rules(NamedTuple):
    """``kills``: below the kill threshold the policy decides; else it lowers the caps. ``kubelet``: a kubelet evicts at
    the same line.
    """

    limit_ns: int
    kills: bool
    kubelet: bool = False


class Domain(NamedTuple):
    """Bytes of the node or of kubepods. ``line``: its highest hard threshold. ``enough``: where a shortage ends, above
    the line if there is a min reclaim. ``rate``: its growth in a second under the hold; 0: none.
    """

    available: int
    line: int
    enough: int
    rate: int = 0


class Pod(NamedTuple):
    """A held pod: since when, what for, the bytes charged to it then (``usage``) and at most (``cap``). ``crosses``: it
    may grow to its cap, across the kubelet's line; else its growth is stopped.
    """

    uid: str
    reason: str
    since_ns: int
    usage: int
    cap: int
    crosses: bool = False


class Look(NamedTuple):
    """One sample. ``growers``, in eviction order, and ``victim`` ("": no pod is to be evicted now): uid and bytes
    charged of pods that may be held. ``first``: the first of the eviction order. ``usages``: bytes charged to the held
    pods. ``other``: a pod that the kubelet evicted for memory, that is not held, and that the policy would not have
    evicted before the held pods; ``answered``: the kubelet evicted one that the policy would have. ``freezes``: the
    brakes of all these pods stop processes too. ``slow``: held pods that sleep for each allocation. ``since``: pods
    that an earlier daemon held, and since when.
    """

    now_ns: int
    domains: Mapping[str, Domain]
    growers: Sequence[tuple[str, int]] = ()
    victim: tuple[str, int] = ("", 0)
    first: str = ""
    usages: Mapping[str, int] = {}
    gone: Sequence[str] = ()
    evicted: Sequence[str] = ()
    other: str = ""
    freezes: bool = False
    slow: Sequence[str] = ()
    answered: bool = False
    since: Mapping[str, int] = {}


class State(NamedTuple):
    """``left``: bytes available when a domain's threshold was first met under this hold, by signal. ``met_ns``: since
    when one is met, or since the kubelet's last answer; ``clear_ns``: since when memory is clear; 0: not. ``step``:
    beside a kubelet. ``opened``: why the policy decides.
    """

    pods: tuple[Pod, ...] = ()
    left: Mapping[str, int] = {}
    met_ns: int = 0
    clear_ns: int = 0
    step: str = ""
    opened: str = ""
    tight: bool = False

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(pod.uid for pod in self.pods)


class Steps(NamedTuple):
    """What to do: hold pods, change the caps of held pods, release pods (uid and reason)."""

    hold: tuple[Pod, ...] = ()
    recap: tuple[Pod, ...] = ()
    end: tuple[tuple[str, str], ...] = ()


FREE = State()


def kill_threshold(left: int, rate: int = 0) -> int:
    """The kill threshold: bytes available at which the policy kills, where ``left`` were as the hold began."""
    return min(3 * left // 4, max(left // 4, rate * STOP_NS // 1_000_000_000))


def room(line: int) -> int:
    """Headroom above a threshold from which on memory is clear."""
    return min(max(line // _ROOM_PART, _LEAST_ROOM), _MOST_ROOM)


def hold_line(rules: Rules, domain: Domain) -> int:
    """Bytes available below which pods are held."""
    return domain.line + (MARGIN if rules.kubelet else 0)


def advance(rules: Rules, state: State, look: Look) -> tuple[State, Steps]:
    """The steps that follow from a sample, and the state after them."""
    state, ended = _drop_gone(state, look)
    state = _see(rules, state, look, answered=look.answered or bool(ended))
    if not state.opened:
        state = state._replace(opened=_opens(rules, state, look))
    state, more = _release(rules, state, look)
    ended += more
    held, recapped = tuple[Pod, ...](), tuple[Pod, ...]()
    if not ended and (not state.opened or (not rules.kills and state.opened != TIME_LIMIT)):
        state, held = _hold(rules, state, look)
    if state.opened and (state.step == ACROSS or not (rules.kills or state.tight)):
        recapped = tuple(p._replace(cap=look.usages.get(p.uid, p.usage), crosses=False) for p in state.pods)
        state = _with_caps(state, recapped)._replace(step="", tight=not rules.kills)
    elif not state.opened and not held:
        state, recapped = _step(rules, state, look)
        if not recapped:
            state, recapped = _creep(state, look)
    if not state.pods and not state.met_ns:
        state = FREE
    return state, Steps(held, recapped, ended)


def may_run(rules: Rules, state: State, domains: Mapping[str, Domain], room: int) -> bool:
    """Whether a held pod may run for a moment, for a SIGKILL: not if ``room`` reaches to the kill threshold, or to a
    kubelet's line that is not met. ``room``: bytes available that this pod and all that run
    already may allocate below their caps.
    """
    above = rules.kubelet and not state.met_ns
    floors = {s: d.line if above else kill_threshold(state.left.get(s, d.available)) for s, d in domains.items()}
    return all(room < domain.available - floors[signal] for signal, domain in domains.items())


def is_in_the_way(state: State) -> bool:
    """Whether the policy's victim is not killed now, because pods are held instead."""
    return bool(state.pods) and not state.opened


def _met(look: Look) -> dict[str, Domain]:
    return {signal: d for signal, d in look.domains.items() if d.available < d.line}


def _drop_gone(state: State, look: Look) -> tuple[State, tuple[tuple[str, str], ...]]:
    """Without the pods that have no process left."""
    ended = tuple((u, EVICTED if u in look.evicted else GONE) for u in state.uids if u in look.gone)
    left = tuple(p for p in state.pods if p.uid not in look.gone)
    return state._replace(pods=left, step=state.step if left else ""), ended


def _see(rules: Rules, state: State, look: Look, *, answered: bool) -> State:
    """Note how much memory is available. ``answered``: the kubelet evicted a pod, or a held pod is gone."""
    met = _met(look)
    clear = all(d.available >= max(d.enough, hold_line(rules, d)) + room(d.line) for d in look.domains.values())
    if not met:
        clear_ns = (state.clear_ns or look.now_ns) if clear else 0
        return state._replace(left={}, met_ns=0, clear_ns=clear_ns, tight=False)
    left = {signal: state.left.get(signal, d.available) for signal, d in met.items()}
    # A kubelet evicts one pod, waits until it is gone, and samples again: its loops count from its last answer.
    met_ns = look.now_ns if answered else state.met_ns or look.now_ns
    return state._replace(left=left, met_ns=met_ns, clear_ns=0)


def _opens(rules: Rules, state: State, look: Look) -> str:
    """Why the policy decides itself from now on, "" if it does not."""
    if any(d.available <= kill_threshold(state.left[signal], d.rate) for signal, d in _met(look).items()):
        return SECOND_LINE
    if not state.pods:
        return ""
    if look.other:
        return OTHER_POD
    if rules.kubelet and state.met_ns and look.now_ns - state.met_ns >= LOOPS_NS:
        return UNANSWERED
    return TIME_LIMIT if look.now_ns - min(p.since_ns for p in state.pods) >= rules.limit_ns else ""


def _release(rules: Rules, state: State, look: Look) -> tuple[State, tuple[tuple[str, str], ...]]:
    """Release the pods that are not to be held any more."""
    now, pods = look.now_ns, state.pods
    # The time limit of one pod releases no other. Where the policy may kill at the limit, a hold lasts as long again.
    most_ns = 2 * rules.limit_ns if rules.kills and state.met_ns else rules.limit_ns
    ended = {p.uid: TIME_LIMIT for p in pods if now - p.since_ns >= most_ns}
    if state.opened and not state.met_ns:  # no pod is to be killed any more
        if state.opened in (OTHER_POD, UNANSWERED):
            ended |= {p.uid: state.opened for p in pods}
        state = state._replace(opened="")
    if not ended and pods and state.clear_ns and now - state.clear_ns >= SETTLED_NS:
        ended = {pods[-1].uid: EVICTED if pods[-1].uid in look.evicted else CLEAR}
        state = state._replace(clear_ns=now)
    return state._replace(pods=tuple(p for p in pods if p.uid not in ended)), tuple(ended.items())


def _hold(rules: Rules, state: State, look: Look) -> tuple[State, tuple[Pod, ...]]:
    """Hold more pods."""
    known = state.uids
    new = [one for one in look.growers if one[0] not in known]
    if not new and not known and look.victim[0] and state.met_ns:
        new = [look.victim]
    if not new or all(d.available >= hold_line(rules, d) for d in look.domains.values()):
        return state, ()
    if state.step == ACROSS:
        each = _each_across(look, len(known) + len(new))
    else:
        each = _each(rules, state, look, len(new))
    held = tuple(
        Pod(u, VICTIM if u == look.first else GROWS, look.since.get(u, look.now_ns), has, has + each) for u, has in new
    )
    if rules.kubelet and not known:
        state = state._replace(step="" if state.met_ns else ABOVE)
    return state._replace(pods=(*state.pods, *held)), held


def _each(rules: Rules, state: State, look: Look, number: int) -> int:
    """Bytes that each of the ``number`` pods to be held next may allocate; together half of what is available in each
    domain, nothing below the kill threshold, nothing that held pods may allocate already. Above the kubelet's line:
    half of the way.
    """
    taken = 0 if look.freezes else sum(max(0, p.cap - look.usages.get(p.uid, p.usage)) for p in state.pods)
    shares = []
    for signal, d in look.domains.items():
        floor, half = kill_threshold(state.left.get(signal, d.available), d.rate), d.available // 2
        if rules.kubelet and not state.met_ns:
            floor, half = d.line, (d.available - d.line) // 2
        shares.append(max(0, min(half, d.available - floor - taken)))
    share = min(shares, default=0)
    return share if look.freezes else share // number


def _step(rules: Rules, state: State, look: Look) -> tuple[State, tuple[Pod, ...]]:
    """Beside a kubelet: let pods across its line when its figures are new enough, and stop them again beyond it."""
    if not rules.kubelet or not state.pods:
        return state, ()
    if state.met_ns:
        is_over = look.now_ns - state.met_ns >= CROSSING_NS or min(_rooms(state, look).values(), default=_NEAR) < _NEAR
        is_over |= any(d.line - d.available >= min(DEPTH, d.line // 8) for d in _met(look).values())
        if not state.step or (state.step == ACROSS and not is_over):
            return state, ()
        whose, step = state.pods, ""
        each = _each(rules, state._replace(pods=()), look, len(whose))
    else:
        step, each = ACROSS, _each_across(look, len(state.pods))
        # Each pod's own cap leads across the line: meanwhile other pods may free memory, or allocate some.
        rooms, deep = _rooms(state, look), _beyond(look, DEPTH, 8)
        least = max(each // 2, deep if deep <= 3 * each // 4 else 0)
        least = min(least, DEPTH) if state.clear_ns else least  # the pods are about to be released
        # The kubelet's figures of a pod have to be new enough.
        may = (p for p in state.pods if p.crosses or look.now_ns - p.since_ns >= FIGURES_NS)
        whose = tuple(p for p in may if rooms.get(p.uid, 0) < least)
        if (state.clear_ns and state.step != ACROSS) or not each or not whose:
            return state, ()
    caps = tuple(p._replace(cap=look.usages.get(p.uid, p.usage) + each, crosses=bool(step)) for p in whose)
    return _with_caps(state, caps)._replace(step=step), caps


def _beyond(look: Look, most: int, part: int) -> int:
    """Bytes until memory is ``most``, or that part of a line, below it, and below no line by more; 0: no line."""
    return min((d.available - d.line + min(most, d.line // part) for d in look.domains.values() if d.line), default=0)


def _each_across(look: Look, number: int) -> int:
    """Bytes that each of ``number`` pods may allocate: what one alone needs, together not below the kill threshold."""
    beyond = max(0, _beyond(look, BEYOND, 2))
    left = min((d.available - kill_threshold(d.line) for d in look.domains.values() if d.line), default=0)
    return max(beyond // number, min(beyond, left // number))


def _rooms(state: State, look: Look) -> dict[str, int]:
    """Bytes that the pods on their way across may still allocate, by uid."""
    return {p.uid: p.cap - look.usages.get(p.uid, p.usage) for p in state.pods if p.crosses}


def _creep(state: State, look: Look) -> tuple[State, tuple[Pod, ...]]:
    """Raise the caps of slowed pods that are near them, not below the kill threshold, or a line that is not met."""
    if state.step == ACROSS:
        return state, ()
    usages = {p.uid: look.usages[p.uid] for p in state.pods if p.uid in look.slow and p.uid in look.usages}
    near = [p for p in state.pods if p.uid in usages and p.cap - usages[p.uid] < _NEAR]
    floors = {s: kill_threshold(state.left[s], d.rate) if s in state.left else d.line for s, d in look.domains.items()}
    rest = min((d.available - floors[signal] for signal, d in look.domains.items()), default=0)
    if not near or rest < CREEP * len(near):
        return state, ()
    caps = tuple(p._replace(cap=usages[p.uid] + CREEP) for p in near)
    return _with_caps(state, caps), caps


def _with_caps(state: State, caps: Iterable[Pod]) -> State:
    """With these in the place of the pods of the same uid."""
    by_uid = {pod.uid: pod for pod in caps}
    return state._replace(pods=tuple(by_uid.get(p.uid, p) for p in state.pods))


# which pods grow, and so may be held, by uid


def who_grew(
    grew: Mapping[str, int], everywhere: int, order: Iterable[str], lately: Mapping[str, int] | None = None
) -> list[str]:
    """Pods that plainly grow, in ``order``: each by an eighth of ``everywhere``, the growth of memory as a whole. Not
    those that stand still ``lately``, unless all do.
    """
    least = max(NOISE, everywhere // _PART)
    found = [uid for uid in order if grew.get(uid, 0) >= least]
    grow = found if lately is None else [uid for uid in found if lately.get(uid, 0) >= _STANDS]
    return grow or found


def who_grows_on(grew: Mapping[str, int], left: int, order: Iterable[str]) -> list[str]:
    """Pods that grow although others are held, in ``order``: each by a part of what is ``left``."""
    least = max(NOISE, left // _LEFT_PART)
    return [uid for uid in order if grew.get(uid, 0) >= least]

"""Which pods are held while memory is short, how much more they may take, and when that ends (`--mode hold`).

docs/hold.md has the rules ("How outrace decides"); reasons that are in no rule:

* A frozen pod's cap is for the one system call that takes everything. Each may have all that is left to take
  (`Look.freezes`), because v2 kills a pod that reaches its cap before the freeze (4 pods with 1 MiB each, in a guest).
* A pod in the midst of such a call sleeps in it (`Look.slow`, v2), and is killed at its cap. So it gets a little more
  room whenever it comes near, never a huge page, for which no process sleeps.
* Beside a kubelet with the same line a hold has two steps: the kubelet ranks by figures of pods that are up to 15 s
  older than the shortage it sees. A pod is held *above* the line until they are new enough, and then goes *across*.

Pure: what was seen comes in, what is to be done comes out. Sizes are bytes, times ns of one clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

VICTIM, GROWS = "victim", "grows"
ABOVE, ACROSS = "above", "across"
#: Why the policy decides itself.
SECOND_LINE, TIME_LIMIT, UNANSWERED, OTHER_POD = "second_line", "time_limit", "unanswered", "other_pod"
#: Why a pod is released, besides those.
CLEAR, GONE, EVICTED = "clear", "gone", "evicted"

#: From the decision to kill until a pod grows no more: as in the advice on thresholds (docs/incidents.md).
STOP_NS = 5_000_000
#: So long there has to be room before anybody is released, and before the next one is.
SETTLED_NS = 500_000_000
#: Two loops of the kubelet: whoever was not evicted then is not going to be.
LOOPS_NS = 20_000_000_000
#: No figure of a pod that the kubelet ranks by is older: cAdvisor looks every 10 to 15 s.
FIGURES_NS = 15_000_000_000
#: How far above the kubelet's line pods are held: what grows until the brake (0.5 ms at 10 GiB/s is 5 MiB) and then.
MARGIN = 16 << 20
#: They are stopped so far across, or so long after: 0.2 MiB across was clear again before the kubelet's next look.
DEPTH, CROSSING_NS = 4 << 20, 100_000_000
#: Their cap is so far across it: what grows between two looks and until they are stopped (0.8 ms at 10 GiB/s is 8 MiB).
BEYOND = 16 << 20
#: Who is slowed down has so much room again when he has less than that: a look is 5 ms, and 100 threads take 25 MiB/s.
CREEP, _NEAR = 7 << 18, 1 << 20
#: Room above a threshold: a part of it, within these bounds.
_LEAST_ROOM, _MOST_ROOM, _ROOM_PART = 2 << 20, 32 << 20, 8


class Rules(NamedTuple):
    """``kills``: below the second line the policy decides; else brakes are tightened. ``kubelet``: there is one that
    evicts at the same line.
    """

    limit_ns: int
    kills: bool
    kubelet: bool = False


class Domain(NamedTuple):
    """Bytes of the node or of kubepods. ``line``: its highest hard threshold. ``enough``: where a shortage ends, above
    it where there is a min reclaim. ``rate``: what it grew by in a second since somebody is held; 0: nothing.
    """

    available: int
    line: int
    enough: int
    rate: int = 0


class Pod(NamedTuple):
    """One that is held: since when, what for, what was charged to it then, and what may be at most. ``crosses``: it
    may go on to that, across the kubelet's line; else its growth is stopped.
    """

    uid: str
    reason: str
    since_ns: int
    usage: int
    cap: int
    crosses: bool = False


class Look(NamedTuple):
    """What is seen at a moment. ``growers``, in the policy's order, and ``victim`` ("": none is to be evicted now):
    uid and bytes charged of who may be held. ``first``: the first of the policy's order. ``usages``: bytes charged
    to those who are held. ``other``: a pod, none of those, that the kubelet has evicted for memory and that the
    policy would not have evicted before them; ``answered``: it has evicted one that the policy would have.
    ``freezes``: the brakes of all of them stop processes too. ``slow``: of those who are held, who sleeps for what
    he takes. ``since``: who was held by an earlier daemon, and since when.
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
    """``left``: available as a domain's threshold was first met under this hold, by signal. ``met_ns``: since when one
    is, or since the kubelet evicted a pod for it; ``clear_ns``: since when there is room; 0: not. ``step``: beside a
    kubelet. ``opened``: why the policy decides.
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
    """What is to be done: hold these, change the caps of those, release others for a reason."""

    hold: tuple[Pod, ...] = ()
    recap: tuple[Pod, ...] = ()
    end: tuple[tuple[str, str], ...] = ()


FREE = State()


def second_line(left: int, rate: int = 0) -> int:
    """Bytes available at which somebody is killed after all, where ``left`` were as the hold began."""
    return min(3 * left // 4, max(left // 4, rate * STOP_NS // 1_000_000_000))


def room(line: int) -> int:
    """Bytes above a threshold from which on there is room again."""
    return min(max(line // _ROOM_PART, _LEAST_ROOM), _MOST_ROOM)


def hold_line(rules: Rules, domain: Domain) -> int:
    """Bytes available below which pods are held."""
    return domain.line + (MARGIN if rules.kubelet else 0)


def advance(rules: Rules, state: State, look: Look) -> tuple[State, Steps]:
    """What follows from a look. The state is that after the steps have been taken."""
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
    """Whether a held pod may run for a moment, for a SIGKILL or a process that starts in it: not where taking all of
    ``room`` would reach the second line, or a kubelet's line that is not met. ``room``: bytes that it and all that run
    already may take of what is available, below their caps.
    """
    above = rules.kubelet and not state.met_ns
    floors = {s: d.line if above else second_line(state.left.get(s, d.available)) for s, d in domains.items()}
    return all(room < domain.available - floors[signal] for signal, domain in domains.items())


def awaits_kubelet(rules: Rules, state: State) -> bool:
    """Whether a kubelet is about to evict the first of the order: its line is met, and pods are stopped beyond it. Then
    an exec that has begun in that pod must not delay its end.
    """
    return rules.kubelet and bool(state.met_ns) and not (state.opened or state.tight or state.step == ACROSS)


def is_in_the_way(state: State) -> bool:
    """Whether the policy's victim is not killed now, because somebody is held for it."""
    return bool(state.pods) and not state.opened


def _met(look: Look) -> dict[str, Domain]:
    return {signal: d for signal, d in look.domains.items() if d.available < d.line}


def _drop_gone(state: State, look: Look) -> tuple[State, tuple[tuple[str, str], ...]]:
    """Without those of whom nobody is left."""
    ended = tuple((u, EVICTED if u in look.evicted else GONE) for u in state.uids if u in look.gone)
    left = tuple(p for p in state.pods if p.uid not in look.gone)
    return state._replace(pods=left, step=state.step if left else ""), ended


def _see(rules: Rules, state: State, look: Look, *, answered: bool) -> State:
    """Take in how much there is. ``answered``: the kubelet evicted somebody, or a held pod is gone."""
    met = _met(look)
    clear = all(d.available >= max(d.enough, hold_line(rules, d)) + room(d.line) for d in look.domains.values())
    if not met:
        clear_ns = (state.clear_ns or look.now_ns) if clear else 0
        return state._replace(left={}, met_ns=0, clear_ns=clear_ns, tight=False)
    left = {signal: state.left.get(signal, d.available) for signal, d in met.items()}
    # A kubelet evicts one pod, waits until it is gone, and looks again: its loops count from its last answer.
    met_ns = look.now_ns if answered else state.met_ns or look.now_ns
    return state._replace(left=left, met_ns=met_ns, clear_ns=0)


def _opens(rules: Rules, state: State, look: Look) -> str:
    """Why the policy is to decide itself, "" if it is not."""
    if any(d.available <= second_line(state.left[signal], d.rate) for signal, d in _met(look).items()):
        return SECOND_LINE
    if not state.pods:
        return ""
    if look.other:
        return OTHER_POD
    if rules.kubelet and state.met_ns and look.now_ns - state.met_ns >= LOOPS_NS:
        return UNANSWERED
    return TIME_LIMIT if look.now_ns - min(p.since_ns for p in state.pods) >= rules.limit_ns else ""


def _release(rules: Rules, state: State, look: Look) -> tuple[State, tuple[tuple[str, str], ...]]:
    """Who is not held any more."""
    now, pods = look.now_ns, state.pods
    # One at its limit says nothing of the others. Where the policy has its turn, it has as long again.
    most_ns = 2 * rules.limit_ns if rules.kills and state.met_ns else rules.limit_ns
    ended = {p.uid: TIME_LIMIT for p in pods if now - p.since_ns >= most_ns}
    if state.opened and not state.met_ns:  # nobody is to be killed for it any more
        if state.opened in (OTHER_POD, UNANSWERED):
            ended |= {p.uid: state.opened for p in pods}
        state = state._replace(opened="")
    if not ended and pods and state.clear_ns and now - state.clear_ns >= SETTLED_NS:
        ended = {pods[-1].uid: EVICTED if pods[-1].uid in look.evicted else CLEAR}
        state = state._replace(clear_ns=now)
    return state._replace(pods=tuple(p for p in pods if p.uid not in ended)), tuple(ended.items())


def _hold(rules: Rules, state: State, look: Look) -> tuple[State, tuple[Pod, ...]]:
    """Who is held from now on."""
    known = state.uids
    new = [one for one in look.growers if one[0] not in known]
    if not new and not known and look.victim[0] and state.met_ns:
        new = [look.victim]
    if not new or all(d.available >= hold_line(rules, d) for d in look.domains.values()):
        return state, ()
    if state.step == ACROSS:
        each = _each_across(look, len(known) + len(new))
    else:
        each = _each(_share(rules, state, look), look, len(new))
    held = tuple(
        Pod(u, VICTIM if u == look.first else GROWS, look.since.get(u, look.now_ns), has, has + each) for u, has in new
    )
    if rules.kubelet and not known:
        state = state._replace(step="" if state.met_ns else ABOVE)
    return state._replace(pods=(*state.pods, *held)), held


def _share(rules: Rules, state: State, look: Look) -> int:
    """Bytes that those who are held next may take together: half of what is left in each domain, and nothing that lies
    below the second line or that others who are held may take already. Above the kubelet's line: half of the way to it.
    """
    taken = 0 if look.freezes else sum(max(0, p.cap - look.usages.get(p.uid, p.usage)) for p in state.pods)
    shares = []
    for signal, d in look.domains.items():
        floor, half = second_line(state.left.get(signal, d.available), d.rate), d.available // 2
        if rules.kubelet and not state.met_ns:
            floor, half = d.line, (d.available - d.line) // 2
        shares.append(max(0, min(half, d.available - floor - taken)))
    return min(shares, default=0)


def _step(rules: Rules, state: State, look: Look) -> tuple[State, tuple[Pod, ...]]:
    """Beside a kubelet: across its line when its figures are new enough, and stopped again beyond it."""
    if not rules.kubelet or not state.pods:
        return state, ()
    if state.met_ns:
        is_over = look.now_ns - state.met_ns >= CROSSING_NS or min(_rooms(state, look).values(), default=_NEAR) < _NEAR
        is_over |= any(d.line - d.available >= min(DEPTH, d.line // 8) for d in _met(look).values())
        if not state.step or (state.step == ACROSS and not is_over):
            return state, ()
        whose, step = state.pods, ""
        each = _each(_share(rules, state._replace(pods=()), look), look, len(whose))
    else:
        step, each = ACROSS, _each_across(look, len(state.pods))
        # Each is to come across by the cap that it has; others may give memory back meanwhile, or take some.
        rooms, deep = _rooms(state, look), _beyond(look, DEPTH, 8)
        least = max(each // 2, deep if deep <= 3 * each // 4 else 0)
        least = min(least, DEPTH) if state.clear_ns else least  # they are about to be released
        whose = tuple(p for p in _may_cross(state, look) if rooms.get(p.uid, 0) < least)
        if (state.clear_ns and state.step != ACROSS) or not each or not whose:
            return state, ()
    caps = tuple(p._replace(cap=look.usages.get(p.uid, p.usage) + each, crosses=bool(step)) for p in whose)
    return _with_caps(state, caps)._replace(step=step), caps


def _beyond(look: Look, most: int, part: int) -> int:
    """Bytes that lead so far across a line, by ``most`` or that part of it, and across none by more; 0: no line."""
    return min((d.available - d.line + min(most, d.line // part) for d in look.domains.values() if d.line), default=0)


def _each_across(look: Look, number: int) -> int:
    """What each of ``number`` pods may take on its way: what one alone needs, together not below the second line."""
    beyond = max(0, _beyond(look, BEYOND, 2))
    left = min((d.available - second_line(d.line) for d in look.domains.values() if d.line), default=0)
    return max(beyond // number, min(beyond, left // number))


def _rooms(state: State, look: Look) -> dict[str, int]:
    """What those on their way across may still take."""
    return {p.uid: p.cap - look.usages.get(p.uid, p.usage) for p in state.pods if p.crosses}


def _creep(state: State, look: Look) -> tuple[State, tuple[Pod, ...]]:
    """More room for those who are slowed down and near their caps, down to the second line, or to a line not met."""
    if state.step == ACROSS:
        return state, ()
    usages = {p.uid: look.usages[p.uid] for p in state.pods if p.uid in look.slow and p.uid in look.usages}
    near = [p for p in state.pods if p.uid in usages and p.cap - usages[p.uid] < _NEAR]
    floors = {s: second_line(state.left[s], d.rate) if s in state.left else d.line for s, d in look.domains.items()}
    rest = min((d.available - floors[signal] for signal, d in look.domains.items()), default=0)
    if not near or rest < CREEP * len(near):
        return state, ()
    caps = tuple(p._replace(cap=usages[p.uid] + CREEP) for p in near)
    return _with_caps(state, caps), caps


def _each(share: int, look: Look, number: int) -> int:
    """What one of ``number`` pods may take, where they may take ``share``."""
    return share if look.freezes else share // number


def _may_cross(state: State, look: Look) -> tuple[Pod, ...]:
    """Who may go across: of whom the kubelet's figures are new enough."""
    return tuple(p for p in state.pods if p.crosses or look.now_ns - p.since_ns >= FIGURES_NS)


def _with_caps(state: State, caps: Iterable[Pod]) -> State:
    """With these in the place of those of the same uid."""
    by_uid = {pod.uid: pod for pod in caps}
    return state._replace(pods=tuple(by_uid.get(p.uid, p) for p in state.pods))

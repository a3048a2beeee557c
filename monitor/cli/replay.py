"""`outrace replay`: a recording through the same code as live, once more: `run_pass` decides every pass again,
`episode.feed` and `verdict` make the incidents again. Nothing is looked at but the recording, so the same one gives the
same answer every time.

Every pass is compared with what the daemon decided then; a difference is a defect, or another version's policy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Any, get_args

import click

from monitor import documents, owner
from monitor.cli.output import Columns, amount_of, emit, output_option, table
from monitor.errors import EXIT_FAILURE, EXIT_OK, MonitorError
from monitor.hot.pass_record import outcome_json
from monitor.link.messages import NAMES, HoldLook, Limit, OfPasses, Pass, Ranking, Snapshot
from monitor.policy import decisions, hold
from monitor.policy.decisions import BUSY, EVICT, HELD, Decisions, gate
from monitor.policy.eviction_pass import State, hurries, is_of_memory, is_urgent, run_pass
from monitor.policy.pending_release import Coming
from monitor.policy.ranking import Candidate, EvictionOrder
from monitor.policy.releases import era
from monitor.policy.signals import MEMORY_SIGNALS, Observation
from monitor.policy.suspension import Figures
from monitor.policy.suspension import judge as judge_suspension
from monitor.race import episode
from monitor.race.codec import RecordError, decode, plain
from monitor.race.events import Clock, End, event_from_json
from monitor.race.incident import timestamp
from monitor.race.verdict import verdict
from monitor.settings.config import RunConfig
from monitor.side.recording import Damage, Reader

#: Differences shown; the number of all is given.
_SHOWN = 20
#: What a record or a header raises that is not what it should be, although its checksum is right. (A PolicyError and a
#: RecordError are ValueErrors.)
_UNUSABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
#: Kinds of records that are messages of the hot process.
_MESSAGES: dict[str, type[OfPasses]] = {NAMES[cls]: cls for cls in get_args(OfPasses)}
#: Fields of a recorded configuration that are gone, and their defaults.
_GONE = {"never_kill": False, "layout_container_fs": False}
#: Those that decided nothing.
_UNUSED = ("parsed", "entry_origins", "runbook_url")


@dataclass(slots=True)
class Replayed:
    """What came out. `passes` and `events` are those that were used, `skipped` those before the first snapshot or after
    a gap; `gaps` are records missing in the recording: [first number, how many]. `differences` are passes that were
    decided otherwise than recorded.
    """

    decisions: list[dict[str, Any]] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    passes: int = 0
    events: int = 0
    skipped: int = 0
    gaps: list[list[int]] = field(default_factory=list)
    different: int = 0
    differences: list[dict[str, Any]] = field(default_factory=list)
    damage: Damage | None = None
    clocks: list[tuple[int, int]] = field(default_factory=list)  # since when: Unix time less the time of the records

    def differs(self, what: str, number: int, recorded: object, replayed: object) -> None:
        self.different += 1
        if len(self.differences) < _SHOWN:
            self.differences.append({"what": what, "record": number, "recorded": recorded, "replayed": replayed})

    def unix_ns(self, ts_ns: int) -> int:
        """A time of the records as the wall clock showed it."""
        return ts_ns + next((offset for since, offset in reversed(self.clocks) if since <= ts_ns), self.clocks[0][1])

    def to_json(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__slots__ if name != "clocks"}
        return found | {"damage": None if self.damage is None else self.damage._asdict()}


class Passes:
    """The passes of the policy: the ranking is rebuilt from its changes, everything else follows."""

    def __init__(self, config: RunConfig, found: Replayed) -> None:
        self._config = config.pass_config(kill_at_once=True)
        self._key = era(config.policy).memory_key
        self._found = found
        self._eviction_order = EvictionOrder(self._key)
        self._state = State()
        self._decisions = Decisions(config.kills)
        self._graceful = config.hard_grace_ns > 0
        self._holds = config.hold and config.kills
        self._number = 0  # of the hot process's last message
        self._known = False  # a snapshot came, and nothing is missing since
        self._complete = False  # the ranking is all of it: it began with a whole one, and nothing is missing since

    def take(self, kind: str, value: Mapping[str, Any], number: int) -> None:
        """One message of the hot process. Raises LookupError, TypeError, ValueError if it is none."""
        if kind not in _MESSAGES:
            raise ValueError(f"{kind!r} is no kind of record")
        message: OfPasses = decode(_MESSAGES[kind], value)
        if message.number != self._number + 1:
            self._known = self._complete = False
        self._number = message.number
        if isinstance(message, Ranking):
            self._rank(message)
        elif isinstance(message, Snapshot):
            self._begin(message, number)
        elif not self._known:
            self._found.skipped += 1
        elif isinstance(message, Pass):
            self._pass(message, number)
        elif isinstance(message, Limit):
            self._limit(message, number)
        else:
            self._look(message, number)

    def _rank(self, ranking: Ranking) -> None:
        if ranking.whole:
            self._eviction_order, self._complete = EvictionOrder(self._key), True
        for fields in ranking.put:
            self._eviction_order.put(Candidate(*fields))
        for uid in ranking.removed:
            self._eviction_order.remove(uid)

    def _begin(self, snapshot: Snapshot, number: int) -> None:
        """Go on from a snapshot; where everything before it is known, it has to be what came out here."""
        if not self._complete:
            return
        if missing := set(State._fields) - set(snapshot.state):
            raise RecordError(f"Snapshot.state: {', '.join(sorted(missing))} is missing")
        state, last_id = decode(State, snapshot.state), snapshot.last_id
        if self._known and (state, last_id) != (self._state, self._decisions.last_id):
            ours, theirs = [plain(self._state), self._decisions.last_id], [plain(state), last_id]
            self._found.differs("state", number, theirs, ours)
        self._state = state
        self._decisions.last_id, self._decisions.reported = last_id, dict(snapshot.told)
        self._known = True

    def _pass(self, recorded: Pass, number: int) -> None:
        observations = {signal: Observation(*seen) for signal, seen in recorded.observations.items()}
        disk_orders = {signal: [Candidate(*fields) for fields in order] for signal, order in recorded.slow.items()}

        def rank(signal: str) -> Sequence[Candidate]:
            return self._eviction_order.order() if signal in MEMORY_SIGNALS else disk_orders.get(signal, ())

        result = run_pass(self._config, self._state, observations, recorded.now_ns, rank)
        self._state, outcome = result.state, result.outcome
        self._found.passes += 1
        decision = None
        coming = {signal: Coming(*seen) for signal, seen in recorded.coming.items()}
        waits = decisions.waits(outcome, observations, coming, forced=recorded.forced)
        figures = {signal: decode(Figures, known) for signal, known in recorded.brake.items()}
        brake = judge_suspension(outcome.met, observations, figures)
        holding = recorded.holding  # as the looks that were recorded say
        answer = gate(
            may_act=recorded.may_act and outcome.victim is not None,
            busy=recorded.busy,
            signalled=recorded.held,
            waits=waits,
            forced=recorded.forced,
            suspends=lambda: brake,
            holds=lambda: self._holds and holding and is_of_memory(outcome) and is_urgent(outcome),
        )
        victim = outcome.victim
        if victim is not None and answer == EVICT:
            name = f"{victim.namespace}/{victim.name}" if victim.namespace else victim.name
            crossed_ns = recorded.crossed_ns if is_of_memory(outcome) else 0
            about = decisions.for_threshold(result, observations, brake.reason)
            # No pod was decided on then: a difference.
            decided_ns = recorded.now_ns if recorded.decided_ns is None else recorded.decided_ns
            decision = self._decide(about, (victim.uid, name), decided_ns, recorded.fired, crossed_ns)
        self._check("decision", number, recorded.decision, decision)
        self._check("outcome", number, recorded.outcome, outcome_json(outcome))
        self._check("waits", number, recorded.waits, waits)
        hurried = answer == BUSY and hurries(outcome) and not (self._graceful and holding)
        self._check("hurried", number, recorded.hurried, hurried)
        self._check("kept", number, recorded.kept, answer == HELD)

    def _look(self, recorded: HoldLook, number: int) -> None:
        rules, before = hold.Rules(*recorded.rules), decode(hold.State, recorded.before)
        state, steps = hold.advance(rules, before, decode(hold.Look, recorded.look))
        self._check("hold", number, [recorded.after, recorded.steps], [state._asdict(), steps._asdict()])

    def _limit(self, recorded: Limit, number: int) -> None:
        about = decisions.for_limit(self._config, recorded.message)
        decision = self._decide(about, (recorded.pod, recorded.name), recorded.decided_ns, recorded.fired)
        self._check("decision", number, recorded.decision, decision)

    def _decide(
        self,
        about: Mapping[str, Any],
        pod: tuple[str, str],
        decided_ns: int,
        fired: Sequence[str] | None,
        crossed_ns: int = 0,
    ) -> dict[str, Any] | None:
        """The decision that is made, or None if it was reported too short a time ago."""
        made = self._decisions.make(about, pod, decided_ns=decided_ns, crossed_ns=crossed_ns, fired=fired)
        if made is not None:
            self._found.decisions.append(made)
        return made

    def _check(self, what: str, number: int, recorded: object, replayed: object) -> None:
        """Byte for byte: what reads the same and is not (True, 1, 1.0) is a difference too."""
        if json.dumps(recorded, sort_keys=True) != json.dumps(replayed, sort_keys=True):
            self._found.differs(what, number, recorded, json.loads(json.dumps(replayed)))


class Races:
    """The events of races: episodes, and the incidents they are judged to be."""

    def __init__(self, config: RunConfig, head: Mapping[str, Any], found: Replayed) -> None:
        self._config = config.pass_config()
        self._realtime_ns = int(head["realtime_ns"])
        found.clocks = [(0, self._realtime_ns)]
        self._found = found
        self._state = episode.State()
        self._known = head["part"] == 0  # the reducer began here, or its state was read
        self._resume = False
        self._last_ns = self._number = 0  # of the last event

    def lose(self) -> None:
        self._resume = True

    def take(self, value: Mapping[str, Any], number: int) -> None:
        """One event. Raises RecordError (a ValueError) if it is none."""
        event = event_from_json(value)
        self._number = number
        if isinstance(event, Clock):
            self._found.clocks.append((event.ts_ns, event.realtime_ns))
        if not self._known:
            self._found.skipped += 1
            return
        self._last_ns = max(self._last_ns, event.ts_ns)
        self._found.events += 1
        self._state, over = episode.feed(self._state, event)
        self._judge(over)

    def resume(self, value: Mapping[str, Any], number: int) -> None:
        state = episode.State.from_json(value)
        if self._known and not self._resume and state != self._state:
            self._found.differs("state of the races", number, None, None)
        self._state, self._known, self._resume = state, True, False

    def end(self) -> None:
        """The recording is over, with a last word of the daemon or without."""
        if self._state.open or self._state.waiting:
            self._judge(episode.feed(self._state, End(self._last_ns))[1])

    def _judge(self, over: Iterable[episode.Episode]) -> None:
        for one in over:
            try:
                incident = verdict(one, self._realtime_ns, self._config)
            except Exception as error:  # noqa: BLE001 - as live: a defect in judging must not cost the next its verdict
                problem = f"an episode in {one.domain} could not be judged: {type(error).__name__}: {error}"
                self._found.differs("incident", self._number, None, problem)
            else:
                self._found.incidents.append(incident.to_json())


def _known(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier release recorded, without what is gone since. Raises ValueError where it decided something."""
    for name, default in _GONE.items():
        if recorded.get(name, default) != default:
            raise ValueError(f"recorded with {name.replace('_', '-')}, which is gone; use the release that recorded it")
    return {name: value for name, value in recorded.items() if name not in (*_GONE, *_UNUSED)}


def replay(reader: Reader) -> Replayed:
    """Replay a file. Raises MonitorError if its header cannot be used; a damage is in the answer."""
    found, head = Replayed(), reader.header
    if head is not None:
        try:
            config = RunConfig.from_json(json.dumps(_known(head["config"])))
            passes, races = Passes(config, found), Races(config, head, found)
        except _UNUSABLE as error:
            raise MonitorError(f"the recording's header cannot be used: {error}") from None
        _records(reader, passes, races, found)
        races.end()
    found.damage = reader.damage
    return found


def _records(reader: Reader, passes: Passes, races: Races, found: Replayed) -> None:
    following: int | None = None
    for record in reader.records():
        number, kind, value = record["n"], record["k"], record["v"]
        if following is not None and number != following:
            found.gaps.append([following, number - following])
            races.lose()
        following = number + 1
        try:
            if kind == "event":
                races.take(value, number)
            elif kind == "state":
                races.resume(value, number)
            else:
                passes.take(kind, value, number)
        except _UNUSABLE as error:
            reader.spoilt(f"a record of kind {kind!r} cannot be used: {type(error).__name__}: {error}"[:300])


# the command


@click.command("replay")
@click.argument("file")
@output_option
def command(file: str, output: str) -> int:
    """Decide and judge again what `outrace run --record FILE` recorded; `-` is stdin.

    A rotated file stands alone. Exit code 1 if the recording is damaged, or if anything comes out otherwise than
    recorded.
    """
    with ExitStack() as stack:
        found = replay(Reader(opened(file, stack), file))
    emit(output, found.to_json(), lambda: _lines(found))
    for first, count in found.gaps:
        click.echo(f"{count} records are missing from number {first} on: what they led to is not known", err=True)
    for each in found.differences:
        click.echo(
            f"outrace: error: {each['what']} of record {each['record']} came out otherwise: recorded "
            f"{each['recorded']}, replayed {each['replayed']}",
            err=True,
        )
    if found.damage is not None:
        click.echo(f"outrace: error: {found.damage}; what came before it was replayed", err=True)
    return EXIT_FAILURE if found.damage is not None or found.different else EXIT_OK


def opened(name: str, stack: ExitStack) -> IO[bytes]:
    """A file of a recording, `-` for stdin. Raises MonitorError."""
    if name == "-":
        return sys.stdin.buffer
    try:
        # A shell's <(...) has a writer; another FIFO may never have one.
        is_handed = owner.is_handed(name)
        return stack.enter_context(open(name, "rb") if is_handed else documents.open_file(name))
    except OSError as error:
        raise MonitorError(
            f"{name}: {error.strerror or error}", "name a file that `outrace run --record FILE` wrote"
        ) from None


def _lines(found: Replayed) -> Iterator[str]:
    columns: Columns = {
        "time": lambda one: timestamp(found.unix_ns(one["decided_ns"])),
        "id": "id",
        "signal": lambda one: one["signal"] or "a limit of its own",
        "kind": "kind",
        "available": amount_of("available"),
        "threshold": amount_of("quantity"),
        "pod": "name",
        "what": lambda one: "would evict" if one["observed"] else f"evict ({one['trigger']})",
    }
    yield from table(columns, found.decisions)
    yield ""
    yield from table({"time": "start", "verdict": "verdict", "id": "id", "summary": "summary"}, found.incidents)
    yield ""
    skipped = f", {found.skipped} records before a state they could follow on" if found.skipped else ""
    yield (
        f"{found.passes} passes, {len(found.decisions)} decisions, {found.events} events, "
        f"{len(found.incidents)} incidents{skipped}"
    )

"""Every scenario once, on the real kernel: the final incident, the counters and `incidents show` are right."""

import queue
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from monitor.cli.main import main
from monitor.kernel import loader, mounts
from monitor.lab.scenarios import SCENARIOS
from monitor.lab.stage import NOTHING, Outcome, Scenario, play
from monitor.race.incident import EVICTION_WON, FLAGS, OWN_LIMIT, STALLED, VERDICTS
from tests import live

#: At once: most of a scenario is waiting for things to be quiet. Where a CPU is emulated it is not.
JOBS = 1 if live.emulated() else 3
#: What cannot be made in a memory cgroup: tests/lab/test_global_oom.py makes it in a guest. What needs mode hold, and a
#: kubelet beside it: tests/daemon/test_hold_live.py and tests/race/test_holds.py. Stalls, with their flags, are made by
#: tests/daemon/test_stall_live.py.
NOT_HERE = {"global", "by_hand", "held", "held_then_evicted", "hold_unanswered", OWN_LIMIT, "throttled", "swap"}

#: Played on every kernel: one for each verdict (`group-kill`: own_limit, `user-kill`: relieved). In an emulated guest
#: beside two others a scenario takes 20 to 90 s.
EVERYWHERE = {
    *("evicted-hard", "grace-too-long", "wrong-victim", "tmpfs-outlives", "pinned-cache"),
    *("record-stops", "cache-flood", "user-kill", "group-kill"),
}
#: What is to come about needs a process at the full speed of a CPU: emulated, others have come first (2 runs of 2), or
#: the second pod comes so late that it is another incident (2 runs of 4).
FULL_SPEED = {"burst", "active-flood", "two-hogs"}

Played = tuple[Outcome, Path]


def test_there_is_one_for_every_verdict_and_flag() -> None:
    assert {s.verdict for s in SCENARIOS} == {*VERDICTS, NOTHING} - {STALLED}
    assert {flag for s in SCENARIOS for flag in s.flags} == {*FLAGS} - NOT_HERE
    assert len({s.name for s in SCENARIOS}) == len(SCENARIOS) >= 18


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Played]]]:
    """Those that were asked for, already on their way."""
    mounts.ensure()
    asked = {item.name for item in request.session.items}
    state_dirs: queue.SimpleQueue[Path] = queue.SimpleQueue()
    every = [tmp_path_factory.mktemp("state", numbered=True) for _ in range(JOBS)]
    for directory in every:
        directory.chmod(0o750)
        if JOBS == 1:
            live.lend_pins(directory)
        state_dirs.put(directory)

    def one(scenario: Scenario) -> Played:
        state_dir = state_dirs.get()
        try:
            return play(scenario, state_dir), state_dir
        finally:
            state_dirs.put(state_dir)

    with live.freezer_root(), ThreadPoolExecutor(JOBS) as pool:
        yield {
            s.name: pool.submit(one, s) for s in SCENARIOS if f"test_the_truth[{s.name}]" in asked and not missing(s)
        }
    for directory in every:
        loader.unload(loader.instance_directory(directory))


def missing(scenario: Scenario) -> str:
    """Why it cannot be played here, or ""."""
    if live.emulated() and scenario.name in FULL_SPEED:
        return "an emulated CPU is too slow for this situation to come about"
    return scenario.needs()


def test_every_verdict_is_made_on_every_kernel() -> None:
    assert {s.verdict for s in SCENARIOS if s.name in EVERYWHERE} == {*VERDICTS, NOTHING} - {STALLED}


@pytest.mark.kernel
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, id=s.name, marks=() if s.name in EVERYWHERE else pytest.mark.once) for s in SCENARIOS],
)
def test_the_truth(scenario: Scenario, played: dict[str, Future[Played]], capsys: pytest.CaptureFixture[str]) -> None:
    if missing(scenario):
        pytest.skip(missing(scenario))
    outcome, state_dir = played[scenario.name].result(10 * live.TIMEOUT_S)
    assert outcome.wrong == ""  # apart: a tuple would cut off why
    assert outcome.verdict == scenario.verdict
    if outcome.metrics:  # else the daemon that could be asked is gone
        counted = {v: outcome.metrics[f'outrace_race_total{{verdict="{v}"}}'] for v in VERDICTS}
        assert counted == {v: float(v == scenario.verdict) for v in VERDICTS}
    for incident in outcome.incidents:
        assert main(["incidents", "show", incident["id"], "--state-dir", str(state_dir)]) == 0
        shown = capsys.readouterr().out
        assert incident["summary"].split(";")[0][:60] in " ".join(shown.split())
        for name in (*scenario.evicted, *(name for name in scenario.killed if name)):
            assert f"lab/{name}" in shown
        assert main(["incidents", "show", incident["id"], "--html", "--state-dir", str(state_dir)]) == 0
        page = capsys.readouterr().out
        assert "Timeline" in page
        if incident["verdict"] == EVICTION_WON:
            assert "Memory left in" in page, "the curves of a daemon's own samples"

"""Several held pods of which one goes on, across a kubelet's line, on real cgroups: it comes there, and lives.

The policy is the real one, the brakes too; a kubelet's figures and the hot process's looks are stood in for by a loop.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.policy import hold
from monitor.policy.hold import Domain, Look, Rules, Steps
from tests import live
from tests.actions.braked import HIERARCHY, MIB, stand

pytestmark = pytest.mark.kernel

SIGNAL = "memory.available"
LINE, NODE = 100 * MIB, 320 * MIB
RULES = Rules(limit_ns=600 * 10**9, kills=True, kubelet=True)
#: Takes 64 KiB at a time, 64 MiB a second or less.
CREEP = """
kept = []
while len(kept) < 16 * 60:
    kept.append(bytes([1]) * 65536)
    time.sleep(0.001)
"""


@pytest.mark.parametrize("number", [1, 3, 6])
def test_one_of_several_who_grows_comes_across_the_line_and_lives(tmp_path: Path, number: int) -> None:
    """The caps of six were a sixth of the way each: cgroup v2 killed who reached his, before the line or beyond it."""
    with stand(tmp_path / "state", NODE // MIB) as held, ExitStack() as stack:
        if held.freezer is None:
            pytest.skip("cgroup v1's freezer is not mounted, and cannot be")
        names = [f"pod{n}" for n in range(number)]
        puppets = [stack.enter_context(held.puppet(name)) for name in names]
        brakes = {name: held.any_brake(cgroup=held.pod / name) for name in names}

        def available() -> int:
            return NODE - cgroupfs.usage(HIERARCHY, held.node)

        def usages() -> dict[str, int]:
            return {name: brake.usage() or 0 for name, brake in brakes.items()}

        def look(shown: bool = False, growers: bool = False) -> Look:
            domains, now = {SIGNAL: Domain(available(), LINE, LINE)}, usages()
            wanted = tuple(now.items()) if growers else ()
            return Look(time.monotonic_ns(), domains, wanted, usages=now, shown=names if shown else (), freezes=True)

        def take(state: hold.State, steps: Steps) -> None:
            for pod in (*steps.hold, *steps.recap):
                brake = brakes[pod.uid]
                assert (brake.loosen(pod.cap) if pod.crosses else brake.apply(pod.cap)) is not None
            assert steps.end == ()

        puppets[0].do(f"begun = bytes([1]) * {available() - LINE - 12 * MIB}")
        state, steps = hold.advance(RULES, hold.FREE, look(growers=True))
        assert state.step == hold.ABOVE
        take(state, steps)
        puppets[0].tell(f"exec({CREEP!r})")
        time.sleep(0.05)
        before = usages()
        time.sleep(0.1)
        assert usages()[names[0]] - before[names[0]] < MIB, "it is stopped above the line"
        until = time.monotonic() + live.TIMEOUT_S
        while state.step:
            state, steps = hold.advance(RULES, state, look(shown=True))
            take(state, steps)
            assert held.oom_kills() == 0, f"{(available() - LINE) / MIB:g} MiB above the line"
            assert time.monotonic() < until, f"it stands {(available() - LINE) / MIB:g} MiB above the line"
            time.sleep(0.001)
        assert available() < LINE
        time.sleep(0.2)
        assert held.oom_kills() == 0
        assert LINE - available() < hold.BEYOND
        assert puppets[0].process.poll() is None
        for brake in brakes.values():
            brake.release()
        assert puppets[0].answer() == "done"
        for puppet in puppets:
            puppet.do("assert 1")

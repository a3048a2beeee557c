"""Whatever outrace changes of a pod is as before: every pair of changes in both orders, after a SIGKILL of the hot
process, the helper or both after each of them, by each of the five ways back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from monitor.actions.undo import undo_left
from monitor.cli.main import main
from monitor.kernel import cgroupfs
from tests import live
from tests.actions import changers
from tests.actions.braked import HIERARCHY, LIMIT_FILE, MIB, V2, Stand, stand

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]

#: The process that changes a value: the hot process, that of another daemon, and the helper process.
CHANGES = [
    *(("hot", name) for name in ("hold", "cap", "freeze")),
    ("other", "cap"),
    *(("side", name) for name in ("limit", "mark", "score", *(["soften"] if V2 else []))),
]
PAIRS = [
    (first, second)
    for first, second in permutations(CHANGES, 2)
    # A hot process has one brake of a pod; a helper one note of limits.
    if first[0] != second[0] or (first[0] == "side" and {"mark", "score"} & {first[1], second[1]})
]
DIES: dict[str, list[str]] = {
    "nobody": [],
    "hot": ["hot", "other"],
    "side": ["side"],
    "both": ["hot", "other", "side"],
}
WAYS = ("running", "next start", "failing start", "service manager", "unload")


@pytest.fixture(scope="module")
def changer() -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, changers.__file__)
    with subprocess.Popen(
        command, env=live.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stand, live.Puppet]]:
    with stand(tmp_path_factory.mktemp("undo") / "state") as held, held.puppet() as puppet:
        held.state.mkdir()
        yield held, puppet


class Pod:
    """With a limit and an oom_score_adj of its own, on which changes are played."""

    def __init__(self, held: Stand, puppet: live.Puppet, changer: subprocess.Popen[str]) -> None:
        self._held, self._adj, self._changer = held, Path(f"/proc/{puppet.pid}/oom_score_adj"), changer
        self.state = held.state
        (held.pod / LIMIT_FILE).write_text(str(96 * MIB))
        self._adj.write_text("100")
        self._before = self.now()

    def now(self) -> dict[str, str]:
        noted = [name for name in os.listxattr(self._held.pod) if "outrace" in name]
        return {**self._held.files(), "oom_score_adj": self._adj.read_text(), "noted": " ".join(noted)}

    def play(self, steps: tuple[tuple[str, str], ...], step: int, dies: str, *, ends: bool) -> None:
        states = [str(self.state), str(self.state) + "-other"]
        case = {"pod": str(self._held.pod), "states": states, "steps": steps, "ends": ends}
        assert self._changer.stdin is not None
        assert self._changer.stdout is not None
        self._changer.stdin.write(json.dumps({**case, "kills": {step: DIES[dies]}}) + "\n")
        assert self._changer.stdout.readline() == "done\n"

    def is_as_before(self) -> bool:
        return self.now() == self._before


@pytest.fixture
def pod(
    place: tuple[Stand, live.Puppet], changer: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pod]:
    """Nothing outside its node is looked at: other tests have dead daemons of their own."""
    held, puppet = place
    if held.freezer is None:
        pytest.skip("v1's freezer is not mounted, and cannot be")
    monkeypatch.setattr(cgroupfs, "detect", lambda *_: cgroupfs.Hierarchy(HIERARCHY.version, held.node))
    yield Pod(held, puppet, changer)
    monkeypatch.undo()
    undo_left([held.state], lambda *_, **__: None)


def go(way: str, state: Path) -> None:
    """Undo, where all processes that changed something have ended."""
    if way in ("running", "next start"):
        undo_left([state], lambda *_, **__: None)
    elif way == "failing start":
        assert main(["run", "--no-such-option"]) == 2
    elif way == "service manager":
        assert main(["unload", "--holds", "--state-dir", str(state)]) == 0
    else:
        assert main(["unload", "--state-dir", str(state)]) == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: ", ".join(map(" ".join, pair)))
def test_every_file_is_as_before(
    pod: Pod, pair: tuple[tuple[str, str], ...], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_RESULT", "exit-code")
    for step, dies in ((1, "nobody"), *((step, dies) for step in (0, 1) for dies in DIES if dies != "nobody")):
        pod.play(pair, step, dies, ends=way == "running")
        if way != "running":
            assert not pod.is_as_before(), "a change was made"
        if way != "running" or dies != "nobody":
            go(way, pod.state)
        assert pod.is_as_before(), (step, dies, pod.now())

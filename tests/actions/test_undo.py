"""The contract of whatever outrace changes of a pod, the same for each kind of change."""

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
from tests.hold.braked import HIERARCHY, LIMIT_FILE, MIB, V2, Stand, stand

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]

#: The process that changes a value: the hot process, that of another daemon, and the helper process.
CHANGES = [
    *(("hot", name) for name in ("hold", "cap", "freeze")),
    ("other", "cap"),
    *(("side", name) for name in ("limit", "mark", "score", *(["soften", "relax"] if V2 else []))),
]
PAIRS = [
    (first, second)
    for first, second in permutations(CHANGES, 2)
    # A hot process has one brake of a pod; a helper one note of limits.
    if first[0] != second[0] or (first[0] == "side" and {"mark", "score", "relax"} & {first[1], second[1]})
]
DIES: dict[str, list[str]] = {"nobody": [], "hot": ["hot", "other"], "side": ["side"], "both": ["hot", "other", "side"]}
WAYS = ("running", "next start", "failing start", "service manager", "unload")


@pytest.fixture(scope="module")
def changer() -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, changers.__file__)
    with subprocess.Popen(
        command, env=live.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stand, live.Puppet]]:
    with stand(tmp_path_factory.mktemp("undo") / "state") as held, held.puppet() as puppet:
        held.state.mkdir()
        yield held, puppet


#: No process but those of outrace changes anything, all writes are made, and nothing is put back.
ALONE = {"foreign": {}, "writes": None, "notes": True, "ends": False}


class Pod:
    """With a limit and an oom_score_adj of its own, on which changes are played."""

    def __init__(self, held: Stand, puppet: live.Puppet, changer: subprocess.Popen[str]) -> None:
        self.path, self.state, self._held, self._changer = held.pod, held.state, held, changer
        self._adj = Path(f"/proc/{puppet.pid}/oom_score_adj")
        (held.pod / LIMIT_FILE).write_text(str(96 * MIB))
        self._adj.write_text("100")
        self._before = self.now()

    def now(self) -> dict[str, str]:
        noted = [name for name in os.listxattr(self.path) if "outrace" in name]
        return {**self._held.files(), "oom_score_adj": self._adj.read_text(), "noted": " ".join(noted)}

    def play(self, *steps: tuple[str, str], kills: dict[int, list[str]] | None = None, **how: object) -> bool:
        """Whether each process made its changes, as far as it was not one of ``kills``: after which step, which."""
        states = [str(self.state), str(self.state) + "-other"]
        case = {"pod": str(self.path), "states": states, "steps": steps, "kills": kills or {}}
        self._changer.stdin.write(json.dumps({**case, **ALONE, **how}) + "\n")
        return self._changer.stdout.readline() == "done\n"

    def file(self, name: str) -> Path:
        return self._adj if name == self._adj.name else self.path / name

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
        assert pod.play(*pair, kills={step: DIES[dies]}, ends=way == "running")
        if way != "running":
            assert not pod.is_as_before(), "a change was made"
        if way != "running" or dies != "nobody":
            go(way, pod.state)
        assert pod.is_as_before(), (step, dies, pod.now())


def undone(pod: Pod) -> list[str]:
    """Undo as the next start does; what it logs as a problem."""
    problems = list[str]()
    undo_left([pod.state], lambda level, _, **fields: level == "error" and problems.append(str(fields["problem"])))
    return problems


KINDS = ["moved hold", "moved cap", "moved freeze", "limit", "mark", "score", *(["soften", "relax"] if V2 else [])]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sigkill_before_any_write_leaves_what_can_be_undone(pod: Pod, kind: str) -> None:
    """Before each of its writes, one after the other, until it comes to its end."""
    writes = 0
    while not pod.play(("hot", kind), ends=True, writes=writes):
        assert undone(pod) == []
        assert pod.is_as_before(), (writes, pod.now())
        writes += 1
        assert writes < 100
    assert writes >= 4, "a note, the value, the value from before, no note"
    assert pod.is_as_before()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_changed_that_cannot_be_noted(pod: Pod, kind: str) -> None:
    assert not pod.play(("hot", kind), notes=False)
    assert pod.is_as_before()


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("moved cap", LIMIT_FILE, 100 * MIB),
        ("limit", LIMIT_FILE, 80 * MIB),
        ("mark", "oom_score_adj", 500),
        ("score", "oom_score_adj", 700),
        *([("soften", "memory.high", 72 * MIB), ("moved hold", "memory.high", MIB)] if V2 else []),
    ],
)
def test_what_another_program_wrote_since_stays(pod: Pod, kind: str, name: str, value: int, ends: bool) -> None:
    before = pod.now()
    assert pod.play(("hot", kind), ends=ends, foreign={str(pod.file(name)): str(value)})
    if not ends:
        assert undone(pod) == []
    assert pod.now() == {**before, name: f"{value}\n"}

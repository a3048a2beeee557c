"""Asks a tree everything, and makes of it what is kept: without paths, ports and times of this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import around
from asked import FILES, JSON, SHAPE, Question, commands, refused, replays
from kept import RECORDINGS, STATE, Answers, unpack

WORKER = Path(__file__).with_name("worker.py")
#: What a lister of keys shows for a value.
VALUE = "*"
_FIGURES = re.compile(r"[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}|-?\d[\d:.TZ-]*(?:[KMGT]i)?")


def python_of(tree: Path) -> str:
    """The tree's own interpreter, where it has one."""
    own = tree / ".venv/bin/python"
    return str(own) if own.exists() else sys.executable


class Tree:
    """A tree that answers. ``hidden``: text of this machine -> what stands for it."""

    def __init__(self, tree: Path, place: Path) -> None:
        self.tree, self.place = tree, place
        cgroups = dict.fromkeys(("/sys/fs/cgroup/memory", "/sys/fs/cgroup"), "CGROUPS")
        self.hidden = {str(place): "PLACE", str(tree): "TREE", **cgroups}
        self.environment = os.environ | {"PYTHONPATH": str(tree), "COLUMNS": "120", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
        for name in [name for name in self.environment if name.startswith(("OUTRACE_", "KUBE"))]:
            del self.environment[name]
        self.environment["OUTRACE_RUN_DIR"] = str(place / "files/run")  # no daemon of this machine answers

    def ask(self, questions: Sequence[Question]) -> Answers:
        """Their answers; half of them in each of two processes."""
        halves = [questions[::2], questions[1::2]]
        with ThreadPoolExecutor(len(halves)) as pool:
            return {name: one for answers in pool.map(self.ask_in_turn, halves) for name, one in answers.items()}

    def ask_in_turn(self, questions: Sequence[Question]) -> Answers:
        found = self._worker([[one.words, one.environment] for one in questions])
        return {one.name: self._answer(one, *made) for one, made in zip(questions, found["done"], strict=True)}

    def model(self) -> dict[str, Any]:
        """Command -> its options."""
        found: dict[str, Any] = self._worker([])["options"]
        return found

    def _worker(self, asked: Sequence[Any]) -> dict[str, Any]:
        done = subprocess.run(
            [python_of(self.tree), str(WORKER)],
            input=json.dumps({"ask": asked}).encode(),
            stdout=subprocess.PIPE,
            env=self.environment,
            cwd=self.place,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _answer(self, question: Question, code: int, out: str, err: str) -> dict[str, Any]:
        for text, instead in self.hidden.items():
            out, err = out.replace(text, instead), err.replace(text, instead)
        # A line of log has a time; `run` logs what it undoes of others before it reads its options.
        complaints = [line for line in err.splitlines() if not line.startswith("ts=")]
        made: dict[str, Any] = {"code": code, "err": complaints, "out": out.replace("><", ">\n<").splitlines()}
        if question.kind in (JSON, SHAPE) and out:
            try:
                made["out"] = json.loads(out)
            except ValueError:
                pass  # then it is kept as lines: a difference in itself
        if question.kind == SHAPE:
            made["out"], made["err"] = shape(made["out"]), []
        return vary("", made, question.vary) if question.vary else made


def shape(value: Any) -> Any:
    """Only the keys; of a list, those that any of its items has."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if not isinstance(value, list):
        return VALUE
    items = [shape(one) for one in value]
    objects = [one for one in items if isinstance(one, dict)]
    return [{key: one[key] for one in objects for key in one}] if objects else items[:1]


def vary(path: str, value: Any, patterns: Iterable[str]) -> Any:
    """The same, with `VALUE` at paths like these; of a text only its figures are replaced."""
    if path and any(fnmatchcase(path[1:], pattern) for pattern in patterns):
        return _FIGURES.sub(VALUE, value) if isinstance(value, str) else VALUE
    if isinstance(value, dict):
        return {key: vary(f"{path}.{key}", one, patterns) for key, one in value.items()}
    if isinstance(value, list):
        return [vary(f"{path}.{i}", one, patterns) for i, one in enumerate(value)]
    return value


def prepared(place: Path) -> tuple[Path, Path, Path]:
    """Recordings, files and the state dir that are asked about."""
    recordings, files, state = place / "recordings", place / "files", place / "state"
    for archive in sorted(RECORDINGS.glob("*.tar.xz")):
        unpack(archive, recordings / archive.name.removesuffix(".tar.xz"))
    for name, text in FILES.items():
        path = files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if STATE.exists():
        unpack(STATE, state / "incidents")
    return recordings, files, state


def everything(tree: Path, place: Path, only: str = "*") -> tuple[Answers, list[str]]:
    """Answers whose names are like ``only``, and what this machine cannot be asked about, with why."""
    recordings, files, state = prepared(place)
    one = Tree(tree, place)
    found: Answers = {}
    left_out: list[str] = []

    def like(questions: Iterable[Question]) -> list[Question]:
        return [question for question in questions if fnmatchcase(question.name, only)]

    def part(name: str, groups: Sequence[str], make: Callable[[], Answers]) -> None:
        if not any(fnmatchcase(group, only.partition("/")[0]) for group in groups):
            return
        began = time.monotonic()
        try:
            made = make()
        except (PermissionError, FileNotFoundError) as error:  # not root, no BPF, no openssl
            left_out.append(f"{name}: {error}")
            return
        except (RuntimeError, subprocess.CalledProcessError) as error:
            made = {f"{groups[0]}/failed": str(error)}
        found.update({name: answer for name, answer in made.items() if fnmatchcase(name, only)})
        print(f"{name}: {len(made)} answers in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    part("recordings", [path.name for path in recordings.iterdir()], lambda: one.ask(like(replays(recordings))))
    part("commands", ("commands",), lambda: one.ask(like(commands(files, state))))
    part("refused", ("refused",), lambda: one.ask(like(refused(files))))
    part("evicted", ("cluster",), lambda: around.evicted(one))
    part("explain and top", ("node",), lambda: around.explained(one))
    part("metrics", ("metrics",), lambda: around.metrics(one))
    part("options", ("options",), lambda: {f"options/{name}": options for name, options in one.model().items()})
    return found, left_out

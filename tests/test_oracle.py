"""`make oracle`: what it finds, what intended differences cover, and what it makes of answers."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import ROOT, run, script

differences, kept, asking, asked = (
    script(name, "scripts/oracle") for name in ("differences", "kept", "asking", "asked")
)
paired = script("paired")
INCIDENT = {"id": "a", "verdict": "eviction_won", "flags": ["held"], "steps": [{"t_ms": 0.0}, {"t_ms": 1.5}]}
ANSWERS: dict[str, Any] = {
    "simulated/one": {"code": 0, "err": [], "out": {"incidents": [INCIDENT], "gaps": []}},
    "metrics/outrace_ready": {"labels": {}, "type": "gauge", "help": "1 when decisions can be made."},
    "metrics/outrace_holds": {"labels": {"why": ["clear", "gone"]}, "type": "counter", "help": "Pods held."},
    "refused/run --nothing": {"code": 2, "err": ["outrace: error: No such option"], "out": []},
    "options/outrace run": {"config": {"names": ["--config"], "default": None}},
}


def changed(**what: Any) -> dict[str, Any]:
    """The answers with other values, by path: answer|key|position|...; None takes it away."""
    made = copy.deepcopy(ANSWERS)
    for path, value in what.items():
        *way, last = path.split("|")
        target: Any = made
        for key in way:
            target = target[int(key) if isinstance(target, list) else key]
        if value is None:
            del target[last]
        else:
            target[int(last) if isinstance(target, list) else last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("simulated/one|out|incidents|0|verdict", "oom_unseen", ('.verdict: "eviction_won" became "oom_unseen"',)),
        ("simulated/one|out|incidents|0|flags", [], ('.flags.0: "held" is gone',)),
        ("simulated/one|out|incidents|0|steps|1|t_ms", 1, ("incidents.0.steps.1.t_ms: 1.5 became 1",)),
        ("simulated/one|code", False, ("code: 0 became false",)),
        ("metrics/outrace_ready", None, ("metrics/outrace_ready: all of it", "is gone")),
        ("metrics/outrace_new", {"type": "gauge"}, ("metrics/outrace_new: all of it", "is new")),
        ("metrics/outrace_holds|labels|why", ["clear", "gone", "stopped"], ('labels.why.2: "stopped" is new',)),
        ("refused/run --nothing|code", 1, ("refused/run --nothing: code: 2 became 1",)),
        ("options/outrace run|config", None, ("options/outrace run: config", "is gone")),
    ],
)
def test_what_changes_is_found(path: str, value: Any, expected: tuple[str]) -> None:
    after = changed(**{path: value})
    lines, is_right = differences.report(differences.differences(ANSWERS, after), [])
    assert not is_right
    [line] = lines
    assert all(text in line for text in expected), line


def test_the_order_of_keys_counts_and_an_item_before_others_is_one_difference() -> None:
    found = list(differences.differences({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}))
    assert [(one.path, one.before, one.after) for one in found] == [(".<order>", ["x", "y"], ["y", "x"])]
    for rows in ([{"n": 1}, {"n": 2}], [{"name": "b"}, {"name": "c"}]):
        new = {**rows[0], **dict.fromkeys(rows[0], "new")}
        [one] = differences.differences({"a": rows}, {"a": [new, *rows]})
        assert (one.how, one.after) == ("new", new)
    assert list(differences.differences(ANSWERS, copy.deepcopy(ANSWERS))) == []


def test_what_is_intended_passes_and_an_entry_without_use_is_named(tmp_path: Path) -> None:
    listed = tmp_path / "intended.toml"
    listed.write_text(
        '[[intended]]\nanswer = "metrics/outrace_h*"\npath = "*"\nhow = "gone"\nreason = "dropped"\n'
        '[[intended]]\nanswer = "options/*"\npath = "*.default"\nreason = "other defaults"\n'
    )
    entries = differences.intended(listed)
    gone = changed(**{"metrics/outrace_holds": None})
    lines, is_right = differences.report(differences.differences(ANSWERS, gone), entries)
    assert is_right
    assert lines == [
        "intended, 1 times: metrics/outrace_h*: *: dropped",
        "intended, and matches nothing: options/*: *.default: other defaults",
    ]
    other = changed(**{"metrics/outrace_holds|type": "gauge", "options/outrace run|config|default": "x"})
    lines, is_right = differences.report(differences.differences(ANSWERS, other), entries)
    assert not is_right, "only that it is gone was intended"
    assert lines[0] == 'metrics/outrace_holds: type: "counter" became "gauge"'
    listed.write_text('[[intended]]\nanswer = "*"\npath = "*"\nreason = " "\n')
    with pytest.raises(ValueError, match="needs a reason"):
        differences.intended(listed)


def test_answers_are_without_what_is_of_this_machine() -> None:
    vary = asking.vary(
        "", {"out": {"pods": [{"age_s": 3, "name": "a", "text": "in 12Ki"}]}}, ("out.pods.*.age_s", "*.text")
    )
    assert vary == {"out": {"pods": [{"age_s": "*", "name": "a", "text": "in *"}]}}
    assert asking.shape({"checks": [{"a": 1}, {"b": [2, 3]}], "none": []}) == {
        "checks": [{"a": "*", "b": ["*"]}],
        "none": [],
    }
    question = asked.Question("x", ("x",))
    made = asking.Tree(ROOT, Path("/nowhere"))._answer(question, 0, f'{{"at": "{ROOT}/a"}}', "/nowhere/b\n")
    assert made == {"code": 0, "err": ["PLACE/b"], "out": {"at": "TREE/a"}}


def test_kept_answers_are_of_this_tree(tmp_path: Path) -> None:
    """All questions about files and simulated recordings alone, as `make oracle` asks them; the files are small."""
    recordings, files, state = asking.prepared(tmp_path)
    questions = [one for one in asked.replays(recordings) if one.name.startswith("simulated/")]
    questions += [one for one in asked.commands(files, state) if one.kind != asked.SHAPE]  # those are of a machine
    questions += asked.refused(files)
    found = asking.Tree(ROOT, tmp_path).ask(questions)
    before = {name: answer for name, answer in kept.read().items() if name in found}
    lines, is_right = differences.report(differences.differences(before, found), differences.intended(kept.INTENDED))
    assert is_right, "\n".join(line for line in lines if "matches nothing" not in line)
    assert len(found) == len(before) > 500
    assert json.dumps(found["simulated/episode-collateral"]["out"]["incidents"]).count("collateral")
    assert sum(path.stat().st_size for path in kept.DATA.rglob("*") if path.is_file()) < 20 << 20


def test_the_command_exits_with_1_where_something_differs(tmp_path: Path) -> None:
    """A tree in which the only command answers otherwise."""
    package = tmp_path / "monitor/cli"
    package.mkdir(parents=True)
    (tmp_path / "monitor/__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "main.py").write_text(
        "import click\ncli = click.Group('cli')\ndef main():\n    print('other')\n    return 0\n"
    )
    command = (sys.executable, "scripts/oracle", "compare", "--only", "refused/c*", "--tree", str(tmp_path))
    done = run(*command, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    assert "refused/cleanup: code: 2 became 0" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("they differ")


@pytest.mark.parametrize(
    ("old", "new", "text", "is_worse"),
    [
        ([100.0, 102.0], [103.0], "ratio", False),  # within the spread and 3 %
        ([100.0, 102.0], [107.0], "101, 107: 1.059, spread 0.020", True),
        ([100.0, 140.0], [150.0], "spread 0.400", False),  # the machine is not quiet enough to say
        ([100.0, 102.0], [50.0], "0.495", False),
        ([100.0, 102.0, 100.0, 99.0], [120.0, 101.0], "1.105", False),  # in one turn only
        ([100.0, 102.0, 100.0, 99.0], [120.0, 108.0], "1.140", True),
        ([(0, 200), (1, 200)], [(1, 200)], "1 of 400, 1 of 200", False),
        ([(0, 200), (1, 200)], [(20, 200)], "1 of 400, 20 of 200", True),
    ],
)
def test_old_and_new_in_one_run(old: list[Any], new: list[Any], text: str, is_worse: bool) -> None:
    line, found = paired.judged(paired.Figure(old, new))
    assert found == is_worse, line
    assert text in line or text == "ratio"

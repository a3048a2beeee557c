"""The checks of `make lint` (scripts/checks) can fail; and what the documents only have read is run."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.main import BENCHES, COMMANDS
from monitor.errors import EXIT_CANNOT, EXIT_FINDINGS, EXIT_OK
from tests.commands import called, script

command_lines, documents, lanes, layering, seeds, way = (
    script(name, "scripts/checks") for name in ("command_lines", "documents", "lanes", "layering", "seeds", "way")
)


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("hot", "from monitor.side.node_state import NodeState"),
        ("hot", "from monitor import side"),
        ("side", "def f():\n    from monitor.hot import loop"),
        ("kernel", "import monitor.pods.model"),
        ("cli", "from monitor.lab.node import LabNode"),
        ("policy", "import importlib\nimportlib.import_module('monitor.kernel.wire')"),
    ],
)
def test_an_import_from_above_is_found(part: str, source: str) -> None:
    assert len(list(layering.upwards(part, source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "def f():\n    from time import monotonic",
        "import ctypes.util",
        "from . import quantity",
        "import numpy",
        "import importlib\nimportlib.import_module('socket')",
        "open('/proc/self/stat')",
        "from datetime import datetime\ndatetime.now()",
    ],
)
def test_a_part_that_is_not_pure_is_found(source: str) -> None:
    assert list(layering.impure("policy", source))
    assert list(layering.impure("race", "id(1)"))


def test_a_second_user_of_bcc_is_found() -> None:
    assert len(list(layering.alone("monitor/hot/x.py", "import bcc.table"))) == 1
    assert list(layering.alone("monitor/kernel/loader.py", "from bcc import BPF")) == []


def test_a_circle_of_imports_is_found() -> None:
    around = {"a": {"b", "top"}, "b": {"c"}, "c": {"a", "end"}, "top": {"a"}, "end": set[str](), "first": {"top"}}
    assert layering.circles(around) == {"a", "b", "c", "top"}
    assert layering.circles({**around, "c": {"end"}, "a": {"b"}}) == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see `monitor/daemon/loop.py`, tests/conftest.py and x/monitor/none.py", ["monitor/daemon/loop.py"]),
        ("`monitor.policy.thresholds`, `monitor.policy.none`", ["monitor.policy.none"]),
        ("`monitor.policy.pods.Pod.no_such`", ["monitor.policy.pods.Pod.no_such"]),
        ("`tests/test_checks.py::test_no`, `...::test_there_are_commands_to_run`", ["tests/test_checks.py::test_no"]),
        ('`test_checks.py` (`-k "there_are or no_such"`)', ["test_checks.py -k no_such"]),
        ("`nowhere.py`", ["nowhere.py"]),
    ],
)
def test_a_name_of_nothing_is_found(text: str, expected: list[str]) -> None:
    assert [*documents.no_such_path(text), *documents.no_such_name(text)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`outrace tops`", ["outrace tops: no command 'tops'"]),
        ("`outrace top --twice`", ["outrace top --twice: No such option '--twice'."]),
        ("```\nkubectl -n x exec ds/x -- outrace tops\n```", ["outrace tops: no command 'tops'"]),
        ("```\noutrace bench races\n```", ["outrace bench races: no command 'races'"]),
        ("```\noutrace doctor; outrace top x y  # z\n```", ["outrace doctor; outrace top x y  # z: unexpected: x y"]),
        ("```console\n# make runs\noutrace was here\n```", ["make runs: no target 'runs'"]),
        ("```text\noutrace was here\n```", []),
        ('```\nmake run ARGS="--enforced"\n```', ["make run ARGS=\"--enforced\": No such option '--enforced'."]),
        ("`outrace run --mode hold|release`", ["outrace run --mode hold|release: --mode: 'release' is"]),
        ('```\nOUTRACE_OPTIONS="--enforced"\n```', ["outrace run --enforced: No such option '--enforced'."]),
        ("`outrace incidents list|show|lose ID`", ["outrace incidents list|show|lose ID: no command 'lose'"]),
        ("`outrace incidents list [--since 1h|TIME] [--limit N]`", []),
        ("```\noutrace run --eviction-hard 'memory.available<1Gi' \\\n  --enforce\n```", []),
        ("`--enforced` and `--enforce`, `--max-pods 3`", ["no option --enforced"]),
    ],
)
def test_a_command_or_option_that_is_none_is_found(text: str, expected: list[str]) -> None:
    found = [*command_lines.bad(text), *command_lines.unknown_options(text)]
    assert len(found) == len(expected)
    assert all(one.startswith(wanted) for one, wanted in zip(found, expected, strict=True)), found


@pytest.mark.parametrize(
    ("second", "gaps"),
    [
        ("monitor/policy/eviction_pass.py: _merged", 0),
        ("monitor/policy/none.py: run_pass", 1),
        ("monitor/policy/eviction_pass.py: none", 1),
        ("monitor/policy/eviction_pass.py: State.none", 1),
        ("monitor/policy/quantity.py: Quantity", 1),
        ("bpf/pressure.c: none", 1),
    ],
)
def test_a_gap_in_the_way_of_a_record_is_found(second: str, gaps: int) -> None:
    ((_, steps),) = way.ways(f"# way\n1. `monitor/policy/eviction_pass.py: run_pass`\n2. `{second}`\n")
    assert len(list(way.gaps(steps))) == gaps


RESERVE, PROVEN = "monitor/policy/sizing.py: size", "tests/test_checks.py::test_there_are_commands_to_run"


@pytest.mark.parametrize(
    "rule",
    [
        {"where": ["nowhere.py: reserve"], "tests": [PROVEN]},
        {"where": ["monitor/policy/sizing.py: none"], "tests": [PROVEN]},
        {"where": [RESERVE], "tests": ["tests/test_checks.py::test_none"]},
        {"where": [RESERVE]},
        {"where": "not built"},
        {"where": "not built", "tests": [PROVEN], "differs": "why"},
    ],
)
def test_a_rule_of_the_seeds_without_code_or_test_is_found(rule: dict[str, Any]) -> None:
    assert list(seeds.wrong(rule))


def test_a_lane_with_a_test_that_is_gone_is_found() -> None:
    table = {"family": [{"tests": ["tests/test_checks.py::test_no[a]"], "but": ["tests/test_no.py"]}]}
    known = [{"tests": ["tests/test_checks.py", "tests/test_checks.py::test_there_are_commands_to_run"]}]
    found = lanes.no_such_test(table | {"alone": known[0], "starts": known[0]})
    assert list(found) == ["tests/test_checks.py::test_no[a]", "tests/test_no.py"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the documents run outrace as root: not root here")
@pytest.mark.parametrize("line", command_lines.harmless())
def test_a_command_that_only_reads_runs(line: str, tmp_path: Path) -> None:
    """As it is written, with a state directory of its own: on a developer's machine a daemon may use the usual one."""
    words = shlex.split(line)[1:]
    own = ["--state-dir", str(tmp_path)] if words[0] in ("doctor", "top", "explain", "incidents") else []
    done = called(*words, *own)
    assert done.returncode in (EXIT_OK, EXIT_CANNOT, EXIT_FINDINGS), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout + done.stderr or words == ["config", "check"], "silent, and not because nothing is wrong"


def test_there_are_commands_to_run() -> None:
    assert len(command_lines.harmless()) >= 10


@pytest.mark.parametrize("path", [*([name] for name in COMMANDS), *(["bench", name] for name in BENCHES)])
def test_every_command_explains_itself(path: list[str]) -> None:
    done = called(*path, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: outrace {' '.join(path)}")

"""The configuration of `--pods services`: the table `services:`, and thresholds that decide nothing there."""

from pathlib import Path

import pytest

from monitor.errors import ConfigError
from monitor.settings.config import RunConfig
from monitor.settings.read import build
from tests.daemon.config_files import write


def test_the_table_of_services(tmp_path: Path) -> None:
    text = 'services:\n  "system/b*": {priority: -10, request: 2Gi, grace: 2m}\n  "*": {never: true}\n'
    config = build({"pods": "services"}, write(tmp_path, "own.yaml", text))
    expected = {"system/b*": {"priority": -10, "request": 2 << 30, "grace": 120}, "*": {"never": True}}
    assert list(config.services.items()) == list(expected.items())  # the first pattern counts
    assert RunConfig.from_json(config.to_json()).services == expected


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("[a]", "is not a table of patterns"),
        ("{1: {never: true}}", "is not a pattern of names"),
        ("{a: high}", "a: 'high' is not a map; keys are priority, request, grace, never"),
        ("{a: {prio: 1}}", "a: unknown key 'prio'"),
        ("{a: {priority: 2000000000}}", "a: priority: 2000000000 is above 1000000000"),
        ("{a: {request: lots}}", "a: request: "),
        ("{a: {grace: 1.5s}}", "a: grace: '1.5s' is not a number of whole seconds"),
        ("{a: {grace: 25h}}", "a: grace: '25h' is not a duration above 0 and of at most 24h"),
        ("{a: {grace: 90}}", "a: grace: 90 has no unit; write 90s"),
        ("{a: {never: perhaps}}", "a: never: 'perhaps' is not true or false"),
    ],
)
def test_a_wrong_table_of_services_is_one_line(tmp_path: Path, table: str, problem: str) -> None:
    own = write(tmp_path, "own.yaml", f"services: {table}\n")
    with pytest.raises(ConfigError) as error:
        build({}, own)
    assert f"{own}: services: " in str(error.value)
    assert problem in str(error.value)


def test_no_service_is_killed_for_a_disk() -> None:
    config = build({"pods": "services", "eviction-hard": "memory.available<1Gi,nodefs.available<10%,pid.available<5%"})
    assert {threshold.signal for threshold in config.thresholds()} == {"memory.available", "pid.available"}

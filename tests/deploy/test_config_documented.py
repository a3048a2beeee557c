"""`outrace config example`: made of the table of options, held against what the reader takes."""

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from monitor import documents
from monitor.cli.main import main
from monitor.errors import ConfigError
from monitor.settings import files
from monitor.settings.documented import example
from monitor.settings.options import OPTIONS, OWN_KEYS
from monitor.settings.read import read
from tests.daemon.config_files import build

OWN = tuple(option for option in OPTIONS if option.own_file)


def _uncommented(line: str) -> str:
    """`# ` is prose; `#` and a key, or `#  ` and an entry of a table, is configuration."""
    return line[1:] if line.startswith("#  ") or line[1:2].isalpha() else line


def uncommented() -> str:
    return "".join(f"{_uncommented(line)}\n" for line in example().splitlines())


def all_keys() -> dict[str, Any]:
    (found,) = documents.from_yaml(uncommented())
    assert isinstance(found, dict)
    return found


def test_the_example_changes_nothing_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "outrace.yaml"
    file.write_text(example())
    assert build({}, str(file)) == build({})


def test_the_example_has_every_key_with_unit_default_and_reason() -> None:
    assert tuple(all_keys()) == OWN_KEYS
    text = " ".join(example().replace("\n# ", " ").split())
    for option in OWN:
        assert option.why, option.name
        assert option.value.unit, option.name
        assert option.default, option.name
        assert f"Unit: {option.value.unit}. Default: {option.default}. Changes: at re" in text, option.name


def test_every_key_of_the_example_is_one_that_the_reader_takes(tmp_path: Path) -> None:
    file = tmp_path / "outrace.yaml"
    file.write_text(uncommented())
    found = files.read_own(str(file), OWN_KEYS)
    for option in OWN:
        if option.name != "record":  # its directory has to exist
            option.parse(found[option.name])


REFUSED: tuple[Any, ...] = (
    *(
        {"eviction-hrad": {}},
        {"mode": "kill"},
        {"enforce": "yes"},
        {"services": {"a": {"request": "1 Mi"}}},
        {"hold-limit": 120},
    ),
    *({"kubelet-ca": "ca.crt"}, {"services": {"a": {"prio": 1}}}, {"services": {"a": {}}}),
    *({"webhook": ["ftp://host"]}, {"eviction-hard": {"memory.available": 100}}, {"name": "-x"}, []),
    *({"eviction-max-pod-grace-period": 1.5}, {"enforce-node-allocatable": ["pods"]}),
)
TAKEN: tuple[Any, ...] = (
    *({"services": {"a": {"request": text}}} for text in (1048576, "1.5Mi", "1e6", "+2M", ".5Gi")),
    *({"eviction-pressure-transition-period": text} for text in ("0", "1h2m3.5s", "100µs")),
    {"eviction-hard": "memory.available<100Mi,nodefs.available<5%"},
    {"eviction-max-pod-grace-period": -1},
    *({"reclaim-images": "crictl rmi --prune"}, {"webhook": "https://host/path"}),
    {"listen": "[::1]:0"},
)


@pytest.mark.parametrize("own", REFUSED + TAKEN, ids=str)
def test_the_reader_takes_and_refuses(own: Any, tmp_path: Path) -> None:
    file = tmp_path / "outrace.yaml"
    file.write_text(json.dumps(own))
    with nullcontext() if own in TAKEN else pytest.raises(ConfigError):
        read({}, str(file))


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "example"]) == os.EX_OK
    assert capsys.readouterr().out == example()

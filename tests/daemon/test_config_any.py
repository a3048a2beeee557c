"""Whatever is written as an option or into a file: a configuration, or one line that names what is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.cli.main import main
from monitor.errors import ConfigError
from monitor.settings.options import KUBELET_KEYS, OWN_KEYS, SETTINGS
from monitor.settings.read import build

#: What is on the way between right and wrong: the words of the grammar, numbers without an end, several lines.
_words = st.sampled_from(
    [
        *(
            "memory.available",
            "nodefs.inodesFree",
            "pid.available",
            "<",
            "=",
            ",",
            "%",
            "1",
            "-1",
            "0",
            "9" * 30,
            "1e9",
        ),
        *("100Mi", "1Ei", "8Ei", "5%", "-5%", "1.5", "NaN", "inf", "1h", "30s", "-1s", "9999999h", "\n", "\0", " ", ""),
        *("manifests:", "/", "/tmp", "http://", "localhost", ":", "65536", "[::1]", "@", "pods", "none", "\udcff", "'"),
    ]
)
_texts = st.lists(_words, max_size=5).map("".join) | st.text(max_size=20)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)


def _line(error: ConfigError) -> None:
    assert error.exit_code == 2
    assert str(error).strip()


@given(st.dictionaries(st.sampled_from([setting.name for setting in SETTINGS]), _texts, min_size=1, max_size=3))
def test_any_options(flags: dict[str, str]) -> None:
    try:
        build(flags)
    except ConfigError as error:
        _line(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(OWN_KEYS) | _texts, _values, max_size=3))
def test_any_own_file(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(content))
    try:
        build({}, str(path))
    except ConfigError as error:
        _line(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(KUBELET_KEYS) | _texts, _values, max_size=3))
def test_any_kubelet_configuration(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "kubelet.json"
    kind = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    path.write_text(json.dumps(kind | content))
    try:
        build({}, None, str(path))
    except ConfigError as error:
        _line(error)


@pytest.mark.parametrize("option", sorted(OWN_KEYS))
@pytest.mark.parametrize("value", ["/tmp/a\0b", ["a\0b"], {"memory.available": "1\0"}])
def test_a_nul_character_is_named_before_anything_is_done(tmp_path: Path, option: str, value: Any) -> None:
    """A path with one is an error only when it is used: the state directory's was a traceback, the recording's none."""
    path = tmp_path / "own.json"
    path.write_text(json.dumps({option: value}))
    with pytest.raises(ConfigError, match=f"{option}: .*(holds a NUL character|is not the name of a file)"):
        build({}, str(path))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "--no-such"), "No such option '--no-such'; see `outrace run --help`"),
        (("run", "--eviction-hard"), "Option '--eviction-hard' requires an argument; see --help"),
        (("run", "--enforce=true"), "does not take a value; see --help"),
        (("run", "extra"), "unexpected extra argument (extra); see `outrace run --help`"),
        (("run", "--eviction-max-pod-grace-period", "x"), "'x' is not a valid integer; see"),
        (("run", "--eviction-hard", "memory.available<1\nx"), "--eviction-hard: memory.available: 1 x: "),
        (("run", "--step", "\udcff"), "--step: "),
        (("run", "--listen", f"{'a' * 64}:1"), "at most 63 characters"),
        (("nope",), "No such command 'nope'; see `outrace --help`"),
        (("bench", "nope"), "No such command 'nope'; see `outrace bench --help`"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_ends_with_2(
    arguments: tuple[str, ...], expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("outrace: error: ")
    assert expected in err
    assert err.count("\n") == 1

"""`outrace config translate --file` on what nodes have on disk: whole units, drop-ins, environment files, commands."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from monitor.cli.main import main
from monitor.policy.errors import PolicyError
from monitor.policy.unit_files import command_line
from monitor.policy.unit_words import Written

CASES = yaml.safe_load((Path(__file__).parents[1] / "data/kubelet-units.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_files_of_a_node(case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in case["files"].items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    named = [part for name in case.get("read", case["files"]) for part in ("--file", str(tmp_path / name))]
    code = main(["config", "translate", *named, "--root", str(tmp_path), "-o", "json"])
    out, err = capsys.readouterr()
    if "error" in case:
        assert (code, out) == (2, "")
        assert err == f"outrace: error: {case['error'].replace('DIR', str(tmp_path))}\n"
        return
    assert (code, err) == (0, "")
    made = json.loads(out)
    configuration = made["configuration"]
    assert (configuration.pop("apiVersion"), configuration.pop("kind")) == (
        *("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"),
    )
    assert configuration == case["makes"]
    expected = case.get("notes", [])
    assert len(made["notes"]) == len(expected), made["notes"]
    for note, words in zip(made["notes"], expected, strict=True):
        assert words in note


def test_there_are_whole_files_and_broken_ones() -> None:
    assert len([case for case in CASES if "makes" in case]) >= 18
    assert len([case for case in CASES if "error" in case]) >= 15


def test_flags_after_files_have_the_last_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kubelet.env"
    path.write_text("ARGS=--eviction-hard=memory.available<1Gi,pid.available<5%\n")
    code = main(["config", "translate", "--file", str(path), "--", "--eviction-hard=memory.available<2Gi"])
    assert code == 0
    assert yaml.safe_load(capsys.readouterr().out)["evictionHard"] == {"memory.available": "2Gi", "pid.available": "5%"}


@pytest.mark.parametrize(("content", "expected"), [(None, "cannot be read"), (b"\xff\xfe=", "not UTF-8"), (b"", "")])
def test_files_without_settings(
    content: bytes | None, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kubelet.service"
    if content is not None:
        path.write_bytes(content)
    code = main(["config", "translate", "--file", str(path)])
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2 if expected else 0, 1)
    assert err.startswith(f"outrace: error: {path}: " if expected else f"note: {path}: holds nothing")
    assert expected in err


@pytest.mark.parametrize("text", ["[Unit]\nDescription=no kubelet\n", "[Service]\nType=notify\n", "A=b\n"])
def test_files_without_a_kubelet_are_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty configuration is no answer to the wrong file."""
    path = tmp_path / "some.service"
    path.write_text(text)
    assert main(["config", "translate", "--file", str(path)]) == 0
    assert capsys.readouterr().err == f"note: {path}: no command line of a kubelet, and no flags of one\n"


LINES = st.lists(
    st.one_of(
        st.text(st.sampled_from("aK=-\"'\\$%{}# ;[]\n\t"), max_size=20),
        st.sampled_from(
            [
                "[Service]",
                "ExecStart=",
                "ExecStart=/kubelet $A \\",
                "Environment=A=--v=2",
                "EnvironmentFile=-/x",
                "A='b",
                '"',
            ]
        ),
    ),
    max_size=8,
)


@given(LINES)
def test_any_text_is_read_or_refused_with_its_line(lines: list[str]) -> None:
    text, error = "\n".join(lines), ""
    try:
        words, _ = command_line([Written("unit", text)], lambda _: Written("env", "A=--v=1"))
    except PolicyError as refused:
        error = str(refused)
    if error:
        assert error.startswith(("unit:", "env:"))
        return
    last = len(text.splitlines())
    for word in words:
        name, _, line = word.origin.partition(":")
        assert name == "env" or 1 <= int(line) <= last

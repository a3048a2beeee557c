"""What others write is read within limits: aliases, depth, size, keys given twice, numbers without an end."""

import os
import re
import threading
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from monitor import documents
from monitor.documents import UnreadableError
from monitor.errors import ConfigError
from monitor.pods import manifest_files
from tests.daemon.config_files import build

#: 351 bytes; printed it is 120 MiB.
LAUGHS = 'a: &a ["lol","lol","lol","lol","lol","lol","lol","lol","lol"]\n' + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdef", "bcdefg", strict=True)
)
POD = "kind: Pod\nmetadata: {name: a}\n"
MALICIOUS = {
    "laughs": (LAUGHS, r"line 2: alias \*a; write out what it stands for"),
    "a merge": (POD + "a: {<<: {b: 1}}\n", "line 3: '<<' merges nothing here"),
    "deep": (POD + "a: " + "[" * 200_000, r"nested too deeply: more than 64 levels.*\(line 3\)"),
    "deep blocks": (POD + "a:\n" + "".join(" " * i + "-\n" for i in range(200)), r"nested too deeply.*\(line 6\d\)"),
    "twice": (POD + "spec: {priority: 1,\n  priority: 2000001000}\n", "line 4: key 'priority' is given twice; remove"),
    "twice at the top": (POD + "kind: Pod\n", "line 3: key 'kind' is given twice"),
    "a number": (POD + f"spec: {{priority: {'9' * 5000}}}\n", "line 3: a number of 5000 characters"),
    "a hexadecimal number": (POD + f"spec: {{priority: 0x{'f' * 100_000}}}\n", "line 3: a number of 100002 characters"),
    "a map as a key": (POD + "? {a: 1}\n: 1\n", "line 3: a key must be text"),
    "directives": (
        "".join(f"%TAG !a{i}! x\n" for i in range(2000)) + "---\n" + POD,
        "more than 100 lines begin with '%'",
    ),
    "a tag": (POD + "a: !!python/object/apply:os.system [true]\n", "line 3: tag .* is not known here; remove it"),
    "bytes": (POD + "a: !!binary aGVsbG8=\n", "line 3: tag .*binary' is not known here"),
}


def config_line(path: Path, *, kubelets: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        build({}, *((None, str(path)) if kubelets else (str(path),)))
    assert caught.value.exit_code == 2
    return str(caught.value)


def manifest_line(path: Path) -> str:
    parsed = manifest_files.read(path)
    assert parsed.manifests == ()
    [line] = parsed.problems
    return line


@pytest.mark.parametrize("reader", [manifest_line, config_line, partial(config_line, kubelets=True)])
@pytest.mark.parametrize("case", MALICIOUS)
def test_a_malicious_file_is_one_line_and_little_memory(
    tmp_path: Path, case: str, reader: Callable[[Path], str]
) -> None:
    text, expected = MALICIOUS[case]
    path = tmp_path / "x.yaml"
    path.write_text(text)
    reader(path)  # imports
    tracemalloc.start()
    try:
        line = reader(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert line.startswith(str(path))
    assert re.search(expected, line), line
    assert "\n" not in line
    assert len(line) < len(str(path)) + 300
    assert peak < 4 << 20


def test_a_file_of_many_values() -> None:
    [problem] = manifest_files.parse("x.yaml", b"a: [" + b"{}," * 500_000 + b"]").problems
    assert problem == "x.yaml: document 1: more than 400000 values; split it (line 1)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": ' * 100 + "1" + "}" * 100, r"document 1: nested too deeply: more than 64 levels.*\(line 1\)"),
        ('{"kind": "Pod",\n"kind": "Pod"}', "document 1: key 'kind' is given twice; remove one"),
        ("[" + "[]," * 500_000 + "[]]", "document 1: more than 400000 values; split it"),
        ('{"a": "' + '\\"' * 500_000, "document 1: not JSON: Unterminated string"),
        ('{"a": "' + "\\" * 500_001, "document 1: not JSON"),
        ('{"a": NaN}', "kind: not a v1 Pod"),
        ("{", "^x.json: document 1: not JSON: Expecting property name"),
        ("[" * 100_000, "document 1: nested too deeply"),
        ("1" * 5000, "document 1: not JSON: Exceeds the limit"),
        ('{"kind": "Pod", "metadata": {"name": "\\ud800"}}', "document 1: metadata.name: "),
    ],
)
def test_malicious_json(text: str, expected: str) -> None:
    parsed = manifest_files.parse("x.json", text.encode())
    assert parsed.manifests == ()
    [problem] = parsed.problems
    assert re.search(expected, problem), problem
    assert len(problem) < 300


def test_brackets_and_commas_in_texts_are_neither_depth_nor_values() -> None:
    note = json_in_json = '{\\"a\\": [' * 1000 + "," * 1_000_000
    parsed = manifest_files.parse(
        "x.json", f'{{"kind": "Pod", "metadata": {{"name": "a", "annotations": {{"n": "{note}"}}}}}}'.encode()
    )
    assert parsed.problems == ()
    assert len(parsed.manifests[0].pod.annotations["n"]) > len(json_in_json) - 3000


_text = st.text(st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029"))  # PyYAML writes those wrongly
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | _text,
    lambda inner: st.lists(inner) | st.dictionaries(_text, inner),
)


@given(_json)
def test_what_pyyaml_writes_is_read_as_it_was(value: Any) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    assert list(documents.from_yaml(text)) == [value]


@pytest.mark.parametrize(("name", "kind"), [("/dev/zero", "FIFO"), ("/dev/full", "FIFO"), ("/", "directory")])
def test_a_configuration_that_is_no_file(name: str, kind: str) -> None:
    for flag in ((name, None), (None, name)):
        with pytest.raises(ConfigError, match=f"^{name}: not a regular file but a {kind}.*; name a file"):
            build({}, *flag)


def test_a_configuration_from_a_pipe_and_from_one_nobody_writes_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="nothing writes into this pipe; name a file"):
        build({}, str(tmp_path / "fifo"))
    reading, writing = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(writing, b"enforce: true\n"), os.close(writing)))
    writer.start()
    try:
        assert build({}, f"/dev/fd/{reading}").enforce
    finally:
        writer.join()
        os.close(reading)


def test_a_configuration_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as f:
        f.truncate(1 << 40)
    for flags in ((str(path), None), (None, str(path))):
        with pytest.raises(ConfigError, match="larger than 8 MiB"):
            build({}, *flags)


def test_a_key_that_is_no_text_is_taken_as_its_text() -> None:
    """The hash of a number is known: 160,000 keys chosen by it took half a minute."""
    read = documents.from_yaml("16777216: 1\ntrue: 2\n~: 3\n1.5: 4\nkey: 5\n")
    assert list(read) == [{"16777216": 1, "true": 2, "null": 3, "1.5": 4, "key": 5}]
    with pytest.raises(UnreadableError, match="given twice"):
        list(documents.from_yaml("1: 1\n'1': 2\n"))

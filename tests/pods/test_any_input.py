"""Whatever a manifest holds and a runtime answers is read or refused in one line (no kernel: not in the guests)."""

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from monitor import documents
from monitor.pods import manifest_files, runtimes
from monitor.pods.runtimes import Known

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_keys = st.sampled_from(
    ["name", "uid", "namespace", "annotations", "containers", "resources", "requests", "memory", "priority"]
)
_shaped = st.fixed_dictionaries(
    {"kind": st.just("Pod") | _json},
    optional={
        "apiVersion": st.just("v1") | _json,
        "metadata": st.dictionaries(_keys, st.just("a") | _json, max_size=4) | _json,
        "spec": st.dictionaries(_keys, _json | st.lists(st.dictionaries(_keys, _json)), max_size=3) | _json,
        "status": _json | st.fixed_dictionaries({"containerStatuses": _json | st.lists(st.dictionaries(_keys, _json))}),
        "items": _json,
    },
)


def _check(parsed: manifest_files.Parsed) -> None:
    assert parsed.manifests or parsed.problems
    for problem in parsed.problems:
        assert problem.startswith("x.")
        assert len(problem.splitlines()) == 1
        problem.encode()


@given(_shaped | _json | st.fixed_dictionaries({"kind": st.just("List"), "items": st.lists(_shaped | _json)}))
def test_any_object_is_pods_or_problems(value: object) -> None:
    _check(manifest_files.parse("x.json", json.dumps(value).encode()))
    _check(manifest_files.parse("x.yaml", yaml.safe_dump(value).encode()))


_texts = st.text() | st.text("[]{}:,-&*!|>'\"#%@` \nab~1.\t?=<", max_size=30)


@given(st.binary() | _texts.map(lambda text: text.encode(errors="surrogatepass")))
def test_any_bytes_are_pods_or_problems(data: bytes) -> None:
    for name in ("x.yaml", "x.json"):
        _check(manifest_files.parse(name, data))


def test_what_is_no_text_and_too_large(tmp_path: Path) -> None:
    assert manifest_files.parse("x.yaml", b"a: \xff").problems == ("x.yaml: not UTF-8 at byte 3; save it as UTF-8",)
    (tmp_path / "big.yaml").write_bytes(b"#" * (documents.MAX_BYTES + 1))
    assert manifest_files.read(tmp_path / "big.yaml").problems == (f"{tmp_path}/big.yaml: larger than 8 MiB; split it",)
    assert manifest_files.read(tmp_path / "absent.yaml") is None


_answers = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["Id", "Names", "Name", "Labels", "x"]), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(_answers)
def test_any_answer_is_read(answer: Any) -> None:
    for ident, known in runtimes.read(answer).items():
        assert isinstance(ident, str)
        assert isinstance(known, Known)
        assert "/" not in known.name
        assert all(isinstance(text, str) for pair in known.labels.items() for text in pair)

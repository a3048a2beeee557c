"""Lists are decoded item by item, however the bytes arrive."""

import contextlib
import json
import re
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.kube import decode
from monitor.kube.decode import ItemDecoder, events
from monitor.kube.errors import InvalidResponse, KubeError, ResponseTooLarge

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def decoded(data: bytes, size: int = 1 << 16) -> tuple[list[Any], dict[str, Any]]:
    decoder = ItemDecoder(pieces(data, size), "list pods")
    found = list(decoder.items())
    return found, decoder.envelope


@given(
    around=st.dictionaries(st.text().filter(lambda key: key != "items"), JSON, max_size=3),
    items=st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=4),
    at=st.integers(0, 3),
    size=st.integers(1, 20),
    indent=st.none() | st.just(1),
    ascii_only=st.booleans(),
)
def test_what_comes_out_is_what_json_gives(
    around: dict[str, Any], items: list[Any], at: int, size: int, indent: int | None, ascii_only: bool
) -> None:
    pairs = list(around.items())
    made = dict([*pairs[:at], ("items", items), *pairs[at:]])
    data = json.dumps(made, indent=indent, ensure_ascii=ascii_only).encode(errors="replace")
    expected = json.loads(data)
    found, envelope = decoded(data, size)
    assert found == expected["items"]
    assert envelope == {**expected, "items": []}


@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:\\ items', max_size=60).map(str.encode), st.integers(1, 9))
def test_hostile_bytes_are_one_error(data: bytes, size: int) -> None:
    with contextlib.suppress(KubeError):
        decoded(data, size)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ('{"items": [{"a": 1}, 2]}', "something else than objects"),
        ('{"items": [[]]}', "something else than objects"), ('{"items": [{"a": 1}', "cut off: 19 bytes"),
        ('{"items": [{"a": "1', "cut off"), ('{"items": [{"a": 1}]', "cut off"),
        ('{"items": [{"a": nope}]}', "not JSON"), ("}", "no object"), ("[]", "no object"), ("", "cut off"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 1000])
def test_what_is_no_list_has_a_reason(data: str, why: str, size: int) -> None:
    with pytest.raises(InvalidResponse, match=re.escape(why)):
        decoded(data.encode(), size)


def test_no_items_is_not_the_same_as_null() -> None:
    assert decoded(b'{"items": null, "kind": "PodList"}') == ([], {"items": None, "kind": "PodList"})
    nested = {"x": {"items": [{}]}, "y": "items", "items": []}
    assert decoded(json.dumps(nested).encode()) == ([], nested)


def test_budgets_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_LIST", 1 << 20)
    with pytest.raises(ResponseTooLarge, match="a list of more than 1 MiB"):
        decoded(b'{"items": [' + b"{}," * (1 << 20))
    monkeypatch.setattr(decode, "MAX_OBJECT", 1024)
    with pytest.raises(ResponseTooLarge, match="an object of more than 1 KiB"):
        decoded(b'{"metadata": "' + b"x" * 2000, 100)
    with pytest.raises(ResponseTooLarge, match="an object of more than 1 KiB"):
        decoded(b'{"items": [{"a": "' + b"x" * 2000, 100)
    with pytest.raises(ResponseTooLarge, match="an event of more than 1 KiB"):
        list(events(pieces(b"x" * 2000, 100), "watch pods"))


def test_a_pod_of_what_etcd_takes_is_read_whole() -> None:
    """1.5 MiB of `<` in etcd, which Go writes as \\u003c."""
    pod = b'{"metadata": {"name": "a"}, "spec": {"env": "' + b"\\u003c" * (3 << 19) + b'"}}'
    found, _ = decoded(b'{"items": [' + pod + b', {"b": 1}]}')
    assert [len(found[0]["spec"]["env"]), found[1]] == [3 << 19, {"b": 1}]
    event = b'{"type": "ADDED", "object": ' + pod.replace(b'"name"', b'"resourceVersion": "1", "name"') + b"}\n"
    assert [one.resource_version for one in events(pieces(event, 1 << 16), "watch pods")] == ["1"]


def test_a_list_needs_the_memory_of_one_item_at_most() -> None:
    item = json.dumps({"metadata": {"labels": {f"key-{i}": "v" * 50 for i in range(100)}}}).encode()
    data = b'{"items": [' + b",".join([item] * 300) + b"]}"
    tracemalloc.start()
    items = sum(1 for _ in ItemDecoder(pieces(data, 1 << 14), "list pods").items())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert items == 300
    assert peak < len(data) / 5


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=4), st.integers(1, 30))
def test_events_are_what_was_sent(objects: list[dict[str, Any]], size: int) -> None:
    made = [
        {"type": "ADDED", "object": {**one, "metadata": {"resourceVersion": str(i)}}} for i, one in enumerate(objects)
    ]
    data = b"".join(json.dumps(one).encode() + b"\n" for one in made)
    found = list(events(pieces(data, size), "watch pods"))
    assert [one.object for one in found] == [one["object"] for one in made]
    assert [one.resource_version for one in found] == [str(i) for i in range(len(objects))]

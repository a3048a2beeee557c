"""Every message: the same after its packet; and the channel's refusals."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.kernel.wire import OomEvent
from monitor.link import channel
from monitor.link.messages import NAMES, TYPES, LogLine, Synced

values = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5)


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that a field declared like this may have, as they come out of JSON."""
    plain = {int: st.integers(), str: st.text(), bool: st.booleans(), Any: values, NoneType: st.none()}
    if hint is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if isinstance(hint, UnionType):
        return st.one_of(*map(of, get_args(hint)))
    if get_origin(hint) is Mapping:
        return st.dictionaries(st.text(max_size=5), of(get_args(hint)[1]), max_size=3)
    if get_origin(hint) is Sequence:
        return st.lists(of(get_args(hint)[0]), max_size=3)
    return plain[hint]


def messages(cls: Any) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{name: of(hint) for name, hint in get_type_hints(cls).items()})


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=20)
@given(data=st.data())
def test_a_message_comes_out_of_its_packet_as_it_went_in(name: str, data: st.DataObject) -> None:
    message = data.draw(messages(TYPES[name]))
    found = channel.decode(channel.encode(message))
    assert found == message
    assert type(found) is type(message)


def test_a_field_with_a_default_may_be_missing() -> None:
    assert channel.decode(b'{"t": "oom", "kind": "mark", "ts_ns": 1}') == OomEvent("mark", 1)


def test_every_class_has_a_type_of_its_own() -> None:
    assert len(TYPES) == len(NAMES)


Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Pair]:
    hot, side = channel.pair()
    with hot, side:
        yield hot, side


def test_the_largest_packet_passes_and_one_byte_more_is_refused(ends: Pair) -> None:
    hot, side = ends
    room = channel.MAX_PACKET - len(channel.encode(LogLine("info", "")))
    largest, larger = LogLine("info", "a" * room), LogLine("info", "a" * (room + 1))
    assert channel.send(side, largest)
    assert list(channel.drain(hot)) == [largest]
    with pytest.raises(channel.TooLarge, match=f"its log message has {channel.MAX_PACKET + 1} bytes"):
        channel.encode(larger)
    assert not channel.send(side, larger)
    assert list(channel.drain(hot)) == []


def test_a_closed_end_is_reported_once(ends: Pair) -> None:
    hot, side = ends
    assert channel.send(hot, Synced())
    hot.close()
    assert list(channel.drain(side)) == [Synced(), None]
    assert not channel.send(side, Synced())


def test_what_nobody_reads_fills_a_channel_and_blocks_nobody(ends: Pair) -> None:
    hot, _ = ends
    # One that blocks ends by pytest's timeout.
    assert not all(channel.send(hot, LogLine("info", "x" * 1000)) for _ in range(100_000))

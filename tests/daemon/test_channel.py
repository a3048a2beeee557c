"""The channel: what does not fit is refused by its sender, and what is no message ends no receiver."""

import json
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.link import channel
from monitor.link.messages import Bad, LogLine, Synced

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Pair]:
    hot, side = channel.pair()
    with hot, side:
        yield hot, side


def of_size(size: int) -> LogLine:
    return LogLine("info", "a" * (size - len(channel.encode(LogLine("info", "")))))


def test_the_largest_packet_passes_and_one_byte_more_is_refused(ends: Pair) -> None:
    hot, side = ends
    largest = of_size(channel.MAX_PACKET)
    assert channel.send(side, largest)
    assert list(channel.drain(hot)) == [largest]
    larger = of_size(channel.MAX_PACKET + 1)
    with pytest.raises(channel.TooLarge, match=f"log message has {channel.MAX_PACKET + 1} bytes"):
        channel.encode(larger)
    assert not channel.send(side, larger)
    assert list(channel.drain(hot)) == []


@pytest.mark.parametrize(
    ("packet", "problem"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not an object with a type"),
        (b'{"u": 1}', "not an object with a type"),
        (b'{"t": 1}', "not an object with a type"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"t": "x", "text": "' + b"a" * channel.MAX_PACKET + b'"}', "a packet of more than 131072 bytes"),
    ],
)
def test_what_is_no_message_is_told_and_the_next_one_comes(ends: Pair, packet: bytes, problem: str) -> None:
    hot, side = ends
    for sender, receiver in ((hot, side), (side, hot)):
        sender.send(packet)
        assert channel.send(sender, Synced())
        bad, after = channel.drain(receiver)
        assert isinstance(bad, Bad)
        assert bad.problem.startswith(problem)
        assert after == Synced()


@given(st.binary(min_size=1, max_size=200) | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_any_packet_is_received_as_no_message(packet: bytes | str) -> None:
    hot, side = channel.pair()
    with hot, side:
        hot.send(packet if isinstance(packet, bytes) else packet.encode())
        [message] = channel.drain(side)
        assert message is not None
        assert isinstance(message, Bad)


def test_a_closed_end_is_told_once(ends: Pair) -> None:
    hot, side = ends
    assert channel.send(hot, Synced())
    hot.close()
    assert list(channel.drain(side)) == [Synced(), None]
    assert not channel.send(side, Synced())

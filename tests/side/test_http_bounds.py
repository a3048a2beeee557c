"""What clients of the HTTP server and of the socket may cost, by clocks of the tests; which of them are answered."""

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.side.endpoints import CPU_SHARE
from monitor.side.export import http
from monitor.side.export.http import (
    BURST_S,
    CLIENT_SHARE,
    FRESH_S,
    OPENMETRICS,
    RENDER_SHARE,
    Budget,
    Response,
    Route,
    Shared,
    text,
)
from tests.side.test_http import Running, get


class Clock:
    """Of one thread that computes and sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cpu = 0.0
        self.renderings = 0

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def shared(self, route: Route, share: float, fresh_s: float = 0.0) -> Shared:
        routes = dict.fromkeys(("/metrics", "/stats/summary"), route)
        return Shared(routes, lambda _: None, share, fresh_s, lambda: self.now, lambda: self.cpu, self.sleep)

    def render(self, cost: float, fails: bool = False) -> Response:
        self.now += cost
        self.cpu += cost
        self.renderings += 1
        if fails:
            raise OSError
        return text(200, str(self.renderings))


@pytest.mark.parametrize("cost", [0.001, 0.02, 0.5])
def test_renderings_of_all_that_is_kept_take_no_more_than_their_share_of_a_cpu(cost: float) -> None:
    clock = Clock()
    kept = clock.shared(lambda _: clock.render(cost), RENDER_SHARE, FRESH_S)
    keys = [("/metrics", ""), ("/metrics", OPENMETRICS), ("/stats/summary", "")]
    for key in keys:  # the first of each imports what renders
        kept.ask(*key)
    began, clock.renderings = clock.now, 0
    for _ in range(100_000):
        for key in keys:
            kept.ask(*key)
        clock.now += 0.001
    took = clock.now - began
    assert clock.renderings >= 100
    assert clock.renderings * cost <= RENDER_SHARE * took + cost
    assert clock.renderings <= len(keys) * (took / FRESH_S + 1)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("cost", [0.0001, 0.01, 0.5])
def test_a_flood_of_requests_gets_no_more_than_its_share_of_a_cpu(cost: float, fails: bool) -> None:
    clock = Clock()
    shared = clock.shared(lambda _: clock.render(cost, fails), CPU_SHARE)
    for _ in range(102):
        response = shared.ask("/metrics", "")
        assert response.status == (500 if fails else 200)
        clock.now += 1e-9  # the next request comes after this one was begun
    # The first is free, and the second answered at once: 100 pauses between 101 answers.
    assert clock.now - 100.0 == pytest.approx((100 / CPU_SHARE + 2) * cost)
    clock.now += 100.0  # of one that asks now and then none waits
    began = clock.now
    shared.ask("/metrics", "")
    assert clock.now == pytest.approx(began + cost)


def test_clients_take_no_more_than_their_share_of_a_cpu() -> None:
    clock = Clock()
    budget = Budget(CLIENT_SHARE, lambda: clock.now)
    assert budget.spend(0.0) == 0
    spent = 0.0
    for _ in range(10_000):
        clock.now += 0.002  # requests of one turn
        spent += 0.002
        if debt_s := budget.spend(0.002):
            clock.sleep(debt_s)
    assert spent <= CLIENT_SHARE * (clock.now - 100.0) + BURST_S
    clock.now += 3600.0  # a quiet hour saves up no more than the burst
    assert budget.spend(BURST_S + 0.01) == pytest.approx(0.01 / CLIENT_SHARE)


@pytest.mark.parametrize(
    ("peer", "own", "is_own"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.8.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("192.0.2.7", "192.0.2.7", True),  # the kubelet, of the node's own address
        ("::ffff:192.0.2.7", "::ffff:192.0.2.7", True),
        ("2001:db8::7", "2001:db8::7", True),
        ("10.244.0.5", "192.0.2.7", False),  # a pod
        ("::ffff:10.244.0.5", "::ffff:192.0.2.7", False),
        ("2001:db8::8", "2001:db8::7", False),
        ("::1:127.0.0.1", "2001:db8::7", False),
    ],
)
def test_which_clients_are_on_this_machine(peer: str, own: str, is_own: bool) -> None:
    ends: Any = SimpleNamespace(
        getpeername=lambda: (peer, 40000), getsockname=lambda: (own, 9469), family=socket.AF_INET
    )
    assert http.is_own(ends) == is_own


@pytest.mark.parametrize("exposed", [False, True])
def test_a_client_of_another_host_is_told_the_option(monkeypatch: pytest.MonkeyPatch, exposed: bool) -> None:
    monkeypatch.setattr(http, "is_own", lambda _: False)
    with Running(exposed=exposed) as running:
        assert running.probe() == (200, "good\n")
        status, body = get(running.connect(), "/kept")
    if exposed:
        assert (status, body) == (200, "rendering 1\n")
    else:
        assert (status, body.count("\n")) == (403, 1)
        assert "--expose-metrics" in body

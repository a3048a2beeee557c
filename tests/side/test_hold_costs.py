"""What a hold costs: a real server in a real held cgroup, and the containers of its pod as a cluster reports them."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.side import hold_costs
from monitor.side.hold_costs import Cost, HoldCosts
from tests import live
from tests.actions.braked import MIB, stand
from tests.side.test_holds import HELD

READY = {"main": (True, 0), "helper": (False, 4)}


def made(cgroup: Path, health: dict[str, Any]) -> HoldCosts:
    """``health["now"]``: as the cluster reports the containers of every pod."""
    view: Any = SimpleNamespace(
        pods={HELD.pod: SimpleNamespace(cgroup=cgroup)},
        pod_source=SimpleNamespace(health=lambda _: health["now"]) if health else None,
    )
    return HoldCosts(view)


@pytest.mark.kernel
def test_what_waits_in_the_sockets_of_a_held_server(tmp_path: Path) -> None:
    with stand(tmp_path / "state") as held, held.puppet() as puppet, ExitStack() as stack:
        puppet.do("import socket; server = socket.create_server(('127.0.0.1', 0))")
        puppet.do(f"open({str(tmp_path / 'port')!r}, 'w').write(str(server.getsockname()[1]))")
        address = ("127.0.0.1", int((tmp_path / "port").read_text()))
        first = stack.enter_context(socket.create_connection(address))
        puppet.do("accepted, _ = server.accept()")
        costs, brake = made(held.pod, {}), held.brake()
        costs.held(HELD)
        costs.look(HELD.pod, HELD.id)
        assert costs.of(HELD.pod, HELD.id) == Cost(0, 0)
        assert brake.apply(64 * MIB) is not None
        first.sendall(bytes(3000))
        _others = [stack.enter_context(socket.create_connection(address)) for _ in range(2)]

        def cost() -> Cost:
            costs.look(HELD.pod, HELD.id)
            return costs.of(HELD.pod, HELD.id)

        live.until(lambda: cost() == Cost(2, 3000), lambda: f"what waits: {cost()}")
        brake.close()
        puppet.do("assert len(accepted.recv(3000)) == 3000; [server.accept() for _ in range(2)]")
        assert cost() == Cost(2, 3000), "the most there was"


def test_containers_that_fail_their_probes_meanwhile(tmp_path: Path) -> None:
    health: dict[str, Any] = {"now": READY}
    costs = made(tmp_path / "gone", health)
    costs.held(HELD)
    assert costs.of(HELD.pod, HELD.id) == Cost(unready=0, restarts=0)
    health["now"] = {"main": (False, 0), "helper": (False, 4), "new": (False, 1)}
    costs.look(HELD.pod, HELD.id)
    health["now"] = {"main": (True, 2), "helper": (True, 4)}
    costs.held(HELD._replace(brake="limit"))  # the same hold: what was as it began counts
    assert costs.of(HELD.pod, HELD.id) == Cost(unready=1, restarts=2)
    costs.held(HELD._replace(id=HELD.id + 1))
    assert costs.of(HELD.pod, HELD.id + 1) == Cost(unready=0, restarts=0)


def test_probes_that_fail_meanwhile(tmp_path: Path) -> None:
    """Counted by a kubelet since it runs; one that was started again begins with none."""
    costs = made(tmp_path / "gone", {})
    costs.probed(HELD.pod, HELD.id, {"c Liveness": 7})
    costs.held(HELD)
    assert costs.of(HELD.pod, HELD.id) == Cost()
    for failed, found in (
        ({"c Readiness": 500}, 0),
        ({"c Liveness": 3, "c Readiness": 502}, 5),
        ({"c Readiness": 503}, 6),  # it ends, and its liveness is forgotten
        ({}, 6),
        ({"c Liveness": 4, "c Readiness": 1}, 8),
    ):
        costs.probed(HELD.pod, HELD.id, failed)
        assert costs.of(HELD.pod, HELD.id) == Cost(failed_probes=found)
    costs.held(HELD._replace(id=HELD.id + 1))
    costs.probed(HELD.pod, HELD.id + 1, {"c Liveness": 9})
    assert costs.of(HELD.pod, HELD.id + 1) == Cost(failed_probes=0)


def test_a_first_figure_that_comes_late_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many had failed as the hold began is not known then."""
    costs, now = made(tmp_path / "gone", {}), [0.0]
    monkeypatch.setattr(hold_costs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    costs.held(HELD)
    now[0] = 60.0
    costs.probed(HELD.pod, HELD.id, {"c Liveness": 9})
    assert costs.of(HELD.pod, HELD.id) == Cost()


@pytest.mark.parametrize(("failed", "found"), [(0, None), (2, 2)])
def test_that_no_probe_has_failed_is_known_as_long_as_somebody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: int, found: int | None
) -> None:
    costs, now = made(tmp_path / "gone", {}), [0.0]
    monkeypatch.setattr(hold_costs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    costs.held(HELD)
    costs.probed(HELD.pod, HELD.id, {})
    costs.probed(HELD.pod, HELD.id, {"c Liveness": failed})
    assert costs.of(HELD.pod, HELD.id) == Cost(failed_probes=failed)
    now[0] = 10.0
    assert costs.of(HELD.pod, HELD.id) == Cost(failed_probes=found)


@pytest.mark.parametrize("health", [{}, {"now": None}])
def test_what_is_not_known_costs_not_nothing(tmp_path: Path, health: dict[str, Any]) -> None:
    costs = made(tmp_path / "gone", health)
    costs.held(HELD)
    costs.look(HELD.pod, HELD.id)
    assert costs.of(HELD.pod, HELD.id) == Cost()
    assert costs.of("another", 1) == Cost()

"""Pauses between tries, with a clock and chance of the test's own."""

from collections.abc import Callable

import pytest

from monitor.kube import retry
from monitor.kube.errors import CertificateError, KubeError, NotFound, ServerError, TooManyRequests, TransportError
from monitor.kube.retry import BackOff, retrying
from tests.kube.clock import WaitedClock


def test_it_doubles_up_to_its_cap_and_begins_anew_after_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    back_off = BackOff()
    assert [back_off.next_s() for _ in range(8)] == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    back_off.reset()
    assert back_off.next_s() == 0.8
    monkeypatch.setattr(retry, "random", lambda: 0.5)
    assert BackOff().next_s() == pytest.approx(1.2)


def asking(retry_after_s: float | None) -> ServerError:
    return ServerError("503", retry_after_s=retry_after_s)


def test_retry_after_is_a_floor_with_an_end() -> None:
    back_off = BackOff()
    assert back_off.next_s(asking(7.0)) == 7.0
    assert back_off.next_s(asking(0.0)) == 1.6
    assert back_off.next_s(asking(1e9)) == 300.0


def failing(*errors: KubeError) -> Callable[[], str]:
    left = list(errors)

    def call() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return call


BUDGET = {"causes": [{"reason": "DisruptionBudget"}]}


def test_what_passes_is_tried_again() -> None:
    clock = WaitedClock(1000.0)
    call = failing(TransportError("refused"), ServerError("503", retry_after_s=2.0), TooManyRequests("429"))
    assert retrying(call, 60, clock, clock.wait) == "done"
    first, asked, third = clock.waits
    assert (0.1 <= first < 0.2, 2.0 <= asked < 2.2, 0.4 <= third < 0.8) == (True, True, True)


@pytest.mark.parametrize(
    "error", [NotFound("404"), TooManyRequests("429", details=BUDGET), CertificateError("not trusted")]
)
def test_what_does_not_pass_is_not(error: KubeError) -> None:
    clock = WaitedClock(1000.0)
    with pytest.raises(type(error)):
        retrying(failing(error), 60, clock, clock.wait)
    assert clock.waits == []


def test_it_gives_up_in_time() -> None:
    clock = WaitedClock(1000.0)
    with pytest.raises(ServerError):
        retrying(failing(*[ServerError("500")] * 100), 10, clock, clock.wait)
    assert sum(clock.waits) <= 10

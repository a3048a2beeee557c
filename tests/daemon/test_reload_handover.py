"""A configuration that was read again is handed over: the helper asks, the hot process applies it, then the helper."""

import dataclasses
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.errors import MonitorError
from monitor.hot.decide import Decider
from monitor.hot.housekeeping import Housekeeping
from monitor.hot.supervise import Side
from monitor.kernel import meminfo
from monitor.link import upgrade
from monitor.link.messages import Reconfigure
from monitor.policy.eviction_pass import State
from monitor.policy.signals import Observation
from monitor.policy.thresholds import kubelets as kubelets_lines
from monitor.settings.config import RunConfig
from monitor.settings.read import over_the_kernels_share
from monitor.side import reload
from monitor.side.alerts.send import AlertSender
from monitor.side.export.log import Log
from monitor.side.reload import Reloader
from tests.daemon.config_files import started, write
from tests.daemon.stand_ins import outbox
from tests.log_lines import LogLines
from tests.waiting import until

GIB, MIB = 1 << 30, 1 << 20


class Counters(dict[str, int]):
    """As `SharedStats`; `config_number` is read once before the hot process has taken what waits."""

    waits = 0

    def get(self, name: str, _: Any = 0) -> int:
        value = dict.get(self, name, 0)
        if name == "config_number" and self.waits:
            self[name], self.waits = self.waits, 0
        return value

    def set(self, name: str, value: int) -> None:
        self[name] = value

    def hand_on(self, message: Reconfigure) -> None:
        """To a hot process that takes what it is sent."""
        self.set("config_number", message.number)


def test_the_answer_to_a_refused_one_is_not_taken_for_that_to_the_next() -> None:
    stats = Counters()

    def refuse(message: Reconfigure) -> bool:
        stats.set("config_refused", message.number)
        return True

    view: Any = SimpleNamespace(config=RunConfig())
    watch: Any = SimpleNamespace(hand_on=refuse)
    reloader = Reloader(view, stats, watch, LogLines(), [])
    with pytest.raises(MonitorError, match="no descriptor left"):
        reloader._have_taken(RunConfig())

    def take(message: Reconfigure) -> bool:
        stats.waits = message.number
        return True

    watch.hand_on = take
    reloader._have_taken(RunConfig())
    assert stats.get("config_number") > stats.get("config_refused")


def asked(view: Any, stats: Any, log: LogLines, *takers: Any) -> Reloader:
    """After one request that was answered."""
    reloader = Reloader(view, stats, stats, log, [*takers])
    reloader.ask()
    until(lambda: reloader.state.answered == 1, "an answer")
    return reloader


def test_what_the_helper_cannot_go_by_is_in_force_nowhere(tmp_path: Path) -> None:
    before = started("eviction-hard: memory.available<100Mi\n", tmp_path)
    write(tmp_path, "own.yaml", "eviction-hard: memory.available<200Mi\n")
    stats, log = Counters(), LogLines()

    def full(config: RunConfig) -> None:
        if config is not before:
            raise OSError(28, "No space left on device")

    view = SimpleNamespace(config=before)
    reloader = asked(view, stats, log, full)
    assert (reloader.state.refused, reloader.state.taken) == (1, 0)
    [told] = log.matching("the configuration is not reloaded; the old one stays in force")
    assert "No space left on device" in told["problem"]
    assert view.config is before
    assert "config_number" not in stats


def test_the_default_threshold_follows_what_the_kernel_keeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Steps of less than 16 MiB are none, and what only one look shows is no rise.
    shares = [90 * MIB, 500 * MIB, 90 * MIB, 200 * MIB, 210 * MIB, 205 * MIB, 190 * MIB]
    monkeypatch.setattr(reload, "FOLLOW_S", 0.01)
    monkeypatch.setattr(meminfo, "kernels_share", lambda **_: shares.pop(0) if len(shares) > 1 else shares[0])
    config = dataclasses.replace(started("{}\n", tmp_path), pods="services")
    stats, log = Counters(), LogLines()

    view: Any = SimpleNamespace(config=over_the_kernels_share(config, 80 * MIB))
    reloader = Reloader(view, stats, stats, log, [])
    until(lambda: len(shares) == 1 and log.lines, "the third look")
    [(_, msg, fields)] = log.lines
    assert msg == "the default threshold follows the kernel's memory"
    assert (fields["before"], fields["now"]) == ("180Mi", "300Mi")
    assert view.config.eviction_hard["memory.available"] == "300Mi"
    assert [t.quantity(GIB) for t in view.thresholds if t.signal == "memory.available"] == [300 * MIB]
    assert reloader.state == reload.Reloads()  # there was no request to reload


@pytest.mark.parametrize("text", ["eviction-hard: {memory.available: 50Mi}\n", "record: /nowhere\n"])
def test_a_threshold_that_was_given_or_is_recorded_follows_nothing(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(reload, "FOLLOW_S", 0.01)
    monkeypatch.setattr(meminfo, "kernels_share", lambda **_: looks.append(1) or 900 * MIB)
    config = over_the_kernels_share(dataclasses.replace(started(text, tmp_path), pods="services"), 80 * MIB)
    view, log = SimpleNamespace(config=config), LogLines()
    Reloader(view, Counters(), None, log, [])
    until(lambda: len(looks) > 2, "several looks")
    assert (view.config, log.lines) == (config, [])


def test_after_an_upgrade_nothing_is_read_by_the_new_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(upgrade, "MINE", "another file")
    view: Any = SimpleNamespace(config=started("{}\n", tmp_path))
    assert "outrace was upgraded while it runs; restart it" in asked(view, Counters(), LogLines()).state.problem


def test_an_upgrade_is_seen_by_the_file_that_it_puts_in_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "__init__.py"
    module.write_text("")
    monkeypatch.setattr(upgrade.monitor, "__file__", str(module))
    before = upgrade.identity()
    assert upgrade.identity() == before != "none"
    (tmp_path / "new").write_text("")
    (tmp_path / "new").rename(module)
    assert upgrade.identity() != before
    module.unlink()
    assert upgrade.identity() == "none"


def test_the_next_side_gets_the_new_descriptor() -> None:
    old, new = RunConfig().to_memfd(), RunConfig(log_format="json").to_memfd()
    file = os.fstat(old).st_ino
    side = Side(old, -1, -1)
    side.take_config(new)
    try:
        assert RunConfig.from_fd(new).log_format == "json"
        with suppress(OSError):  # a thread of an earlier test may have the number by now
            assert os.fstat(old).st_ino != file
    finally:
        os.close(new)
        os.close(side.timer.fileno())


def housekeeping(**given: Any) -> tuple[Housekeeping, Counters]:
    """``given``: arguments of the constructor, by name; nothing comes of the others."""
    names = ("gauge", "registry", "evictor", "decider", "records", "kills", "sweeps", "side")
    stats: Any = Counters()
    box = outbox(given.pop("send", None), stats)
    return Housekeeping(outbox=box, **{**dict.fromkeys(names), **given}), stats


def test_what_a_newer_side_sends_is_refused_and_ends_nobody() -> None:
    made, stats = housekeeping()
    made.take_config(Reconfigure(3, '{"of_a_later_version": 1}'))
    assert stats == {"config_refused": 3}


@pytest.mark.parametrize("known", [True, False])
def test_the_kernel_has_the_new_ceilings_before_anybody_is_prepared_and_what_was_compared_ends(known: bool) -> None:
    """A domain that is not counted yet is no reason to leave the trigger with the ceilings of before."""
    done: list[str] = []
    lines = kubelets_lines(RunConfig(eviction_hard={"memory.reclaimable": "1Gi"}).thresholds())
    after = RunConfig(eviction_hard={"memory.available": "8Mi", "memory.reclaimable": "1Gi"})
    watch: Any = SimpleNamespace(
        name="node",
        signal="memory.available",
        compared=True,
        index=0,
        capacity=GIB,
        set_thresholds=lambda _, compared: setattr(watch, "compared", compared),
        observation=lambda *_: Observation(available=50, capacity=GIB, stamp_ns=1),
    )

    def step(name: str) -> Any:
        return lambda *_: done.append(name)

    decider: Any = SimpleNamespace(
        config=RunConfig().pass_config(),
        state=State(),
        compared=SimpleNamespace(met=lines),
        run_pass=step("pass"),
        prepare=step("prepare"),
        reconfigure=lambda after: Decider.reconfigure(decider, after),
        _trigger=SimpleNamespace(stand_down=step("stand down")),
    )
    made, _ = housekeeping(
        records=SimpleNamespace(read_events=step("read"), watch=step("watch")),
        side=SimpleNamespace(take_config=os.close),
        gauge=SimpleNamespace(
            watches=[watch], known=lambda _: known, arm_thresholds=step("arm"), reading=lambda _: None
        ),
        decider=decider,
        send=lambda message: done.append(f"{message.signal} {message.available}"),
    )
    made.watch_thresholds, made.look = step("sweep"), step("look")
    made.take_config(Reconfigure(1, after.to_json()))
    over = "memory.available 50"
    assert done == ["read", "stand down", "arm", "watch" if known else "sweep", over, "look", "pass", "prepare"]
    assert decider.compared.met == ()
    assert decider.config.thresholds == after.thresholds()


def test_a_receiver_that_stays_keeps_its_thread() -> None:
    first, second, third = (f"http://127.0.0.1:{port}" for port in (1, 2, 3))
    sender = AlertSender((first, second), Log())
    before = dict(sender._receivers)
    try:
        sender.take_receivers((second, third))
        assert list(sender.counters) == ["alertmanager 127.0.0.1:2", "alertmanager 127.0.0.1:3"]
        assert sender._receivers[second] is before[second]
        before[first].join(60)
        assert not before[first].is_alive()
    finally:
        assert sender.close(60)

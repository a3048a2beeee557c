"""What a configuration that is read again becomes (`monitor.settings.reload`), or why the old one stays."""

import dataclasses
import os
from pathlib import Path

import pytest

from monitor.errors import ConfigError, MonitorError
from monitor.hot.supervise import Side
from monitor.settings.config import RunConfig
from monitor.settings.option import Option
from monitor.settings.options import SETTINGS
from monitor.settings.read import read
from monitor.settings.reload import merged, reread
from monitor.side.alerts.send import AlertSender
from monitor.side.export.log import Log
from tests.daemon.config_files import write


def started(text: str, tmp_path: Path, **flags: object) -> RunConfig:
    """As the daemon has it: through the memfd, with what a start fills in."""
    config = read(flags, write(tmp_path, "own.yaml", text)).config
    filled = dataclasses.replace(config, pods="cgroups", nodefs="/", imagefs="/", rung="poll", listen_port=40000)
    return RunConfig.from_json(filled.to_json())


def refused(current: RunConfig, text: str, tmp_path: Path) -> str:
    write(tmp_path, "own.yaml", text)
    with pytest.raises(MonitorError) as error:
        reread(current)
    return str(error.value)


def test_what_may_change_changes_and_what_the_start_filled_in_stays(tmp_path: Path) -> None:
    current = started("eviction-hard: {memory.available: 1Gi}\n", tmp_path, enforce=False)
    own = write(tmp_path, "own.yaml", "eviction-hard: {memory.available: 2Gi}\nwebhook: http://h/\n")
    config, changed = reread(current)
    assert changed == ("eviction-hard", "webhook")
    assert (dict(config.eviction_hard), config.webhooks) == ({"memory.available": "2Gi"}, ("http://h/",))
    assert config.thresholds()[0].value.quantity is not None
    assert config.thresholds()[0].quantity(8 << 30) == 2 << 30
    assert (config.pods, config.nodefs, config.rung, config.listen_port) == ("cgroups", "/", "poll", 40000)
    assert config.origins["eviction_hard"] == f"{own}: eviction-hard"
    write(tmp_path, "own.yaml", "")
    assert reread(RunConfig.from_json(config.to_json())).changed == ("eviction-hard", "webhook")  # and back again


def test_flags_still_win(tmp_path: Path) -> None:
    current = started("", tmp_path, **{"eviction-hard": "memory.available<1Gi", "webhook": ("http://flag/",)})
    write(tmp_path, "own.yaml", "eviction-hard: {memory.available: 2Gi}\nwebhook: http://file/\n")
    assert reread(current).changed == ()


_OTHER = {
    "policy": "kubelet-1.17",
    "node-cgroup": "/x",
    "listen": "127.0.0.1:9470",
    "mode": "hold",
    "enforce": True,
    "system-reserved": {"memory": "1Gi"},
    "step": "2Mi",
    "reclaim-images": "true",
    "local-storage-capacity-isolation": False,
}


@pytest.mark.parametrize(("name", "value"), _OTHER.items())
def test_what_cannot_change_refuses_the_whole_and_is_named(name: str, value: object, tmp_path: Path) -> None:
    import yaml

    current = started("pods: services\n", tmp_path)
    text = yaml.safe_dump({"pods": "services", name: value, "eviction-hard": {"memory.available": "2Gi"}})
    problem = refused(current, text, tmp_path)
    assert problem.startswith(f"cannot change while running: {name} (")
    assert f"own.yaml: {name})" in problem
    assert problem.endswith("restart outrace for that, or put back what it was")
    assert problem.count("own.yaml") == 1


@pytest.mark.parametrize("option", [o for o in SETTINGS if o.live], ids=lambda o: o.name)
def test_every_option_that_may_change_is_one_that_the_example_says_so_of(option: Option) -> None:
    assert option.name.startswith("eviction-") or option.name in ("services", "alertmanager", "webhook")


def test_a_default_that_follows_the_machine_is_no_change(tmp_path: Path) -> None:
    current = started("", tmp_path)
    fresh = read({}, str(tmp_path / "own.yaml")).config
    more = {**fresh.given, "fixed": {**fresh.given["fixed"], "max-fill-rate": 1}}
    assert merged(current, dataclasses.replace(fresh, given=more)).changed == ()


@pytest.mark.parametrize(
    ("before", "text", "problem"),
    [
        ("", "eviction-hard: {memory.obtainable: 1Gi}\n", "memory.obtainable: a formula of outrace's own cannot come"),
        (
            "eviction-hard: {memory.reclaimable: 1Gi}\n",
            "",
            "memory.reclaimable: a formula of outrace's own cannot come",
        ),
        (
            "record: {}/r\n",
            "record: {}/r\neviction-hard: {{memory.available: 1Gi}}\n",
            "cannot change while everything",
        ),
        ("", "eviction-soft: {memory.available: 1Gi}\n", "grace period must be specified"),
        ("", "a: [\n", "own.yaml: not YAML"),
    ],
)
def test_what_this_daemon_cannot_take(before: str, text: str, problem: str, tmp_path: Path) -> None:
    if "{}" in before:
        before, text = before.format(tmp_path), text.format(tmp_path)
    assert problem in refused(started(before, tmp_path), text, tmp_path)


def test_the_order_of_services_is_a_change(tmp_path: Path) -> None:
    current = started("services: {a: {priority: 1}, b: {priority: 2}}\n", tmp_path)
    write(tmp_path, "own.yaml", "services: {b: {priority: 2}, a: {priority: 1}}\n")
    config, changed = reread(current)
    assert (changed, list(config.services)) == (("services",), ["b", "a"])


def test_a_kubelet_that_cannot_be_read_any_more_is_no_reason_to_take_defaults(tmp_path: Path) -> None:
    current = started("", tmp_path)
    fresh = dataclasses.replace(read({}).config, kubelet_unread="its file is gone")
    with pytest.raises(MonitorError, match="the kubelet's configuration cannot be read: its file is gone"):
        merged(current, fresh)


def test_mode_hold_keeps_the_line_it_has_with_the_kubelet(tmp_path: Path) -> None:
    current = dataclasses.replace(started("mode: hold\n", tmp_path), pods="kubelet")
    fresh = read({}, str(tmp_path / "own.yaml")).config
    with pytest.raises(ConfigError, match="mode hold cannot leave or join the kubelet's line"):
        merged(current, dataclasses.replace(fresh, kubelet_differs=("x has evictionHard {}",)))


def test_a_configuration_that_was_not_read_cannot_be_read_again() -> None:
    with pytest.raises(MonitorError, match="was not read from anywhere"):
        reread(RunConfig())


def test_the_next_side_gets_the_new_descriptor() -> None:
    side = Side(RunConfig().to_memfd(), -1, -1)
    new = RunConfig(name="new").to_memfd()
    side.take_config(new)
    try:
        assert RunConfig.from_fd(new).name == "new"
        assert len([fd for fd in os.listdir("/proc/self/fd") if _is_config(fd)]) == 1
    finally:
        os.close(new)
        os.close(side.timer.fileno())


def _is_config(fd: str) -> bool:
    try:
        return "outrace-config" in os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return False


def test_a_receiver_that_stays_keeps_its_name_and_a_new_one_gets_another(tmp_path: Path) -> None:
    sender = AlertSender(tmp_path, (), ("http://127.0.0.1:1/a", "http://127.0.0.1:1/b"), Log(), "node")
    first, second = sender.counters
    sender.start()
    try:
        sender.take_receivers((), ("http://127.0.0.1:1/b", "http://127.0.0.1:1/c"))
        assert set(sender.counters) == {second, f"{first} #3"}  # no series goes on for another receiver
        sender.take_receivers((), ("http://127.0.0.1:1/c", "http://127.0.0.1:1/b", "http://127.0.0.1:1/d"))
        assert len(sender.counters) == 3
    finally:
        sender.close(5)


def test_every_option_is_in_the_document_of_the_configuration() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text()
    assert [option.name for option in SETTINGS if f"`{option.name}`" not in text] == []

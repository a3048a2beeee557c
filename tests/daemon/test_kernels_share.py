"""The default threshold of a machine without a kubelet leaves out what the kernel keeps for itself."""

import json
from pathlib import Path

import pytest

from monitor.cli.options import with_default_threshold
from monitor.kernel import meminfo
from monitor.settings.config import RunConfig
from monitor.settings.read import over_the_kernels_share, read, resolved_again
from tests.commands import called
from tests.daemon.config_files import KUBELET, write

MI = 1 << 20
SHARE = 81 * MI + 1
ORIGIN = "default 100Mi, and 82Mi that the kernel keeps"


def hard(config: RunConfig) -> int:
    return next(t.quantity(1 << 30) for t in config.thresholds() if t.hard and t.signal == "memory.available")


def test_the_default_is_higher_by_it_and_says_so() -> None:
    config = over_the_kernels_share(read({"pods": "services"}).config, SHARE)
    assert hard(config) == 182 * MI
    assert config.origins["eviction_hard"] == ORIGIN
    assert RunConfig.from_json(config.to_json()) == config
    shown = {one.threshold.signal: one for one in resolved_again(config).settings.thresholds()}
    assert (shown["memory.available"].text, shown["memory.available"].origin) == ("182Mi", ORIGIN)
    assert shown["nodefs.available"].text == "10%"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own.yaml", "eviction-hard: {memory.available: 50Mi}\n"),
        ("own.yaml", "eviction-hard: {pid.available: 1%}\n"),
        ("kubelet.yaml", f"{KUBELET}evictionHard: {{memory.available: 50Mi}}\n"),
    ],
)
def test_what_was_given_stays(tmp_path: Path, name: str, text: str) -> None:
    path = write(tmp_path, name, text)
    config = read({"pods": "services"}, *((path,) if name == "own.yaml" else (None, path))).config
    changed = over_the_kernels_share(config, SHARE)
    assert (changed.thresholds(), changed.origins) == (config.thresholds(), config.origins)


def test_it_is_for_whole_machines_with_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meminfo, "kernels_share", lambda **_: SHARE)
    once = with_default_threshold(read({"pods": "services"}).config)
    assert hard(once) == hard(over_the_kernels_share(read({"pods": "services"}).config, SHARE)) > 100 * MI
    for other in (once, read({"pods": "services", "node-cgroup": "/x"}).config, read({"pods": "cgroups"}).config):
        assert with_default_threshold(other) == other


def test_commands_that_ask_no_daemon_show_it_as_a_run_has_it() -> None:
    for command in (("config", "show"), ("top", "--once")):
        done = called(*command, "--no-daemon", "--pods", "services", "-o", "json")
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["thresholds"]
        assert next(row["quantity"] for row in rows if row["signal"] == "memory.available") > 110 * MI

"""The default threshold of a machine without a kubelet leaves out what the kernel keeps for itself."""

import dataclasses
import json
from pathlib import Path

import pytest

from monitor.cli.options import with_default_threshold
from monitor.settings.config import RunConfig
from monitor.settings.read import over_the_kernels_share, read, resolved_again
from monitor.settings.reload import reread
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


def test_it_is_for_whole_machines_with_services(tmp_path: Path) -> None:
    assert with_default_threshold(RunConfig(pods="services")).kernels_share
    for other in (RunConfig(pods="services", node_cgroup="/x"), RunConfig(pods="kubelet")):
        assert with_default_threshold(other) == other
    config = dataclasses.replace(read({}, write(tmp_path, "own.yaml", "")).config, pods="cgroups")
    assert hard(reread(config).config) == 100 * MI


def test_it_is_one_at_every_reload_and_back_when_the_file_names_none(tmp_path: Path) -> None:
    write(tmp_path, "own.yaml", "")
    current = over_the_kernels_share(read({"pods": "services"}, str(tmp_path / "own.yaml")).config, SHARE)
    assert reread(current).changed == ()
    write(tmp_path, "own.yaml", "eviction-hard: {memory.available: 50Mi}\n")
    given = reread(current)
    assert (given.changed, hard(given.config)) == (("eviction-hard",), 50 * MI)
    write(tmp_path, "own.yaml", "")
    back = reread(given.config)
    assert (back.changed, hard(back.config)) == (("eviction-hard",), 182 * MI)
    assert back.config.origins["eviction_hard"] == ORIGIN


def test_it_moves_with_the_share_and_back_to_the_plain_default() -> None:
    plain = read({"pods": "services"}).config
    moved = over_the_kernels_share(over_the_kernels_share(plain, SHARE), SHARE + 17 * MI)
    assert (hard(moved), moved.origins["eviction_hard"]) == (199 * MI, ORIGIN.replace("82", "99"))
    assert moved.inputs == over_the_kernels_share(plain, SHARE + 17 * MI).inputs
    assert over_the_kernels_share(moved, 0) == plain
    assert over_the_kernels_share(moved, 0).inputs == plain.inputs


def test_commands_that_ask_no_daemon_show_it_as_a_run_has_it() -> None:
    for command in (("config", "show"), ("top", "--once")):
        done = called(*command, "--no-daemon", "--pods", "services", "-o", "json")
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["thresholds"]
        assert next(row["quantity"] for row in rows if row["signal"] == "memory.available") > 110 * MI

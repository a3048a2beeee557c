"""Every option of `outrace run` in one table: what a value means, how a wrong one is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import yaml

from monitor.errors import ConfigError
from monitor.settings.config import RunConfig
from monitor.settings.options import KEY, OWN_KEYS, SETTINGS, Option
from monitor.settings.read import value_of
from tests.daemon.config_files import build, write

S = 10**9


class Row(NamedTuple):
    """``good``: a value that is not the default; ``means``: what RunConfig has of it. ``bad``: values, each with a part
    of its error. ``beside``: options without which it is refused.
    """

    good: Any
    means: Any
    bad: tuple[tuple[Any, str], ...] = ()
    beside: Mapping[str, Any] = MappingProxyType({})


HOLD = {"mode": "hold"}
OPTIONS = {
    "node-cgroup": Row("/x", "/x", (("", "'' is not a text"),)),
    "pods": Row(
        "services",
        "services",
        (
            ("docker", "manifests:DIR, services or cgroups"),
            ("manifests:/no/such/directory", "/no/such/directory is not a directory; make it"),
            ("kubelet:localhost:10250", "names no https URL"),
            ("kubelet:http://127.0.0.1:10255", "names no https URL"),
            ("manifests:", "names no directory"),
            *((spec, "is not a source of pods") for spec in ("cgroups:x", "apiserver:https://h")),
        ),
    ),
    "services": Row(
        {"system/b*": {"priority": -10, "request": "2Gi", "grace": "2m"}, "*": {"never": True}},
        {"system/b*": {"priority": -10, "request": 2 << 30, "grace": 120}, "*": {"never": True}},
        (
            (["a"], "is not a table of patterns"),
            ({1: {"never": True}}, "is not a pattern of names"),
            ({"a": "high"}, "a: 'high' is not a map; keys are priority, request, grace, never"),
            ({"a": {}}, "a: {} is not a map; keys are"),
            ({"a": {"prio": 1}}, "a: unknown key 'prio'"),
            ({"a": {"priority": 2_000_000_000}}, "a: priority: 2000000000 is above 1000000000"),
            ({"a": {"request": "lots"}}, "a: request: "),
            ({"a": {"grace": "1.5s"}}, "a: grace: '1.5s' is not a number of whole seconds"),
            ({"a": {"request": "0"}}, "a: request: '0' is not a size from 1 to 4Ei"),
            # The whole value of 20E wraps round to a positive number.
            ({"a": {"request": "20E"}}, "a: request: '20E' is not a size from 1 to 4Ei"),
            ({"a": {"request": True}}, "a: request: True is not a quantity"),
            ({"a": {"grace": "25h"}}, "a: grace: '25h' is not a duration above 0 and of at most 24h"),
            ({"a": {"grace": 90}}, "a: grace: 90 has no unit; write 90s"),
            ({"a": {"never": "perhaps"}}, "a: never: 'perhaps' is not true or false"),
        ),
    ),
    "kubeconfig": Row("/etc//k", "/etc/k", (("", "'' is not a text"),)),
    "node-name": Row("node-1", "node-1", ((5, "5 is not a text"),)),
    "kubelet-ca": Row("/ca.crt", "/ca.crt", (("", "'' is not a text"),)),
    "mode": Row("hold", "hold", (("kill", "observe, hold, enforce"),)),
    "enforce": Row(True, True, (("yes", "not true or false"),)),
    "hold-limit": Row(
        "1m",
        60 * S,
        (("0s", "'0s' is not a duration above 0"), ("25h", "'25h' is not a duration above 0")),
        beside=HOLD,
    ),
    "hard-grace": Row(
        "5s", 5 * S, (("1500ms", "'1500ms' is not a number of whole seconds"),), beside={"mode": "enforce"}
    ),
    "trigger": Row("kernel", "kernel", (("nobody", "user, kernel"),)),
    "evict-by": Row("api", "api", (("hand", "kill, api"),)),
    "node-taints": Row("own", "own", (("all", "none, own"),)),
    "policy": Row("kubelet-1.17", "kubelet-1.17", (("kubelet-1.20", "kubelet-1.37, kubelet-1.36, kubelet-1.17"),)),
    "eviction-hard": Row(
        {"memory.available": "2Gi"},
        {"memory.available": "2Gi"},
        (
            ("memory.free<1Gi", "memory.free: 1Gi: unsupported eviction signal memory.free; signals are memory."),
            ("memory.reclaimble<1Gi", "memory.reclaimable, allocatableMemory.reclaimable"),
            ("memory.obtainable<1Gi", "it is gone: use *.reclaimable, or *.available"),
            ("memory.available<1x", "quantity such as 100Mi"),
            ("memory.available<-1", "must be positive"),
            ("memory.available<5Ei", "at most 4Ei; write"),
            ("memory.available", "malformed pair"),
            ("memory.available", "write --eviction-hard 'memory.available<100Mi'"),
        ),
    ),
    "eviction-soft": Row(
        {"memory.available": "2Gi"},
        {"memory.available": "2Gi"},
        (("memory.available<1e30", "memory.available: 1e30: quantities must be at most 4Ei; write"),),
        beside={"eviction-soft-grace-period": {"memory.available": "1m"}},
    ),
    "eviction-soft-grace-period": Row(
        {"memory.available": "1m30s"},
        {"memory.available": "1m30s"},
        (("memory.available=5", "duration such as 90s"), ("memory.available", "write NAME=VALUE")),
    ),
    "eviction-max-pod-grace-period": Row(
        30, 30, ((2**31, "2147483648 is beyond 32 bits"), (1.5, "1.5 is not a whole number"))
    ),
    "eviction-minimum-reclaim": Row(
        {"memory.available": "5%"},
        {"memory.available": "5%"},
        (("memory.available=1e30", "at most 4Ei; write"), ("memory.available=-1", "negative")),
    ),
    "eviction-pressure-transition-period": Row("90s", 90 * S, (("-1s", "negative"), (5, "5 has no unit; write 5s"))),
    "system-reserved": Row({"memory": "1Gi"}, 1 << 30, (("ram=1Gi", "ram: 1Gi: cannot be reserved; resources are c"),)),
    "kube-reserved": Row({"memory": "1Gi"}, 1 << 30, (("memory=-1Gi", "not an amount from 0 to 4Ei"),)),
    "kernel-memcg-notification": Row(True, True, (("maybe", "not true or false"),)),
    "nodefs": Row("/var//lib/", "/var/lib", (("", "'' is not a text"),)),
    "imagefs": Row("/srv", "/srv", (("", "'' is not a text"),)),
    "reclaim-images": Row(
        ["crictl", "rmi", "--prune"],
        ("crictl", "rmi", "--prune"),
        (("crictl 'rmi", "No closing quotation"), ("cri:unix:///run/x.sock", "write crictl instead")),
    ),
    "hooks": Row(
        "poll",
        "poll",
        (("uprobe", "memcg-tracepoint"), ("psi", "write poll"), ("fentry", "is gone: write kprobe")),
    ),
    "listen": Row(
        "[::1]:0",
        "::1:0",
        (("9469", "HOST:PORT"), ("localhost:65536", "HOST:PORT"), (f"{'a' * 64}:1", "at most 63 characters")),
    ),
    "expose-metrics": Row(True, True, (("yes", "not true or false"),)),
    "record": Row(
        "/r", "/r", (("/no/such/directory/r", "the directory /no/such/directory does not exist"), ("/", "is a dir"))
    ),
    "alertmanager": Row(
        ["http://h:1", "http://h:2"],
        ("http://h:1", "http://h:2"),
        (("localhost:9093", "is no http or https URL"), (1, "1 is not a URL")),
    ),
    "stall": Row(
        ["machine>40%", "pod>60%,grace=1m"],
        ("machine>40%", "pod>60%,grace=1m"),
        (("pod>60", "is not a rule"), (5, "is not a rule"), (["pod>50%", "pod>60%"], "two rules have the same scope")),
    ),
    "state-dir": Row("/s", "/s", (("", "'' is not a text"),)),
    "log-format": Row("json", "json", (("xml", "logfmt, json"),)),
}

every_option = pytest.mark.parametrize("option", [o for o in SETTINGS if o.kind != KEY], ids=lambda option: option.name)


@every_option
def test_a_value_means_the_same_as_a_flag_and_in_the_own_file(option: Option, tmp_path: Path) -> None:
    row = OPTIONS[option.name]
    given = {**row.beside, option.name: row.good}
    own = write(tmp_path, "own.yaml", yaml.safe_dump(given, sort_keys=False))
    for config, origin in ((build(given), f"--{option.name}"), (build({}, own), f"{own}: {option.name}")):
        assert value_of(config, option) == row.means != value_of(build(row.beside), option)
        assert config.origins[option.field] == origin
        assert RunConfig.from_json(config.to_json()) == config
    if option.name == "services":
        assert list(value_of(config, option)) == list(row.means), "the first pattern counts"


@pytest.mark.parametrize("name", ["kubeconfig", "kubelet-ca", "nodefs", "imagefs"])
def test_a_relative_path_is_of_the_working_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (option,) = [option for option in SETTINGS if option.name == name]
    assert value_of(build({name: "./etc/../k"}), option) == str(tmp_path / "k")
    with pytest.raises(ConfigError, match=f"own.yaml: {name}: 'k' is not an absolute path"):
        build({}, write(tmp_path, "own.yaml", f"{name}: k\n"))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [(name, *bad) for name, row in OPTIONS.items() for bad in row.bad],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_value_is_one_line_that_names_the_option(name: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build({**OPTIONS[name].beside, name: value})
    line = str(caught.value)
    assert line.startswith(f"--{name}: ")
    assert expected in line
    assert "\n" not in line
    assert caught.value.exit_code == 2


#: Of what is found at start, depends on the machine, or is nothing.
IN_WORDS = ("none", "found at start", "the ", "the kubelet's", "those of ", "require ")


@pytest.mark.parametrize("option", [o for o in SETTINGS if not o.default.startswith(IN_WORDS)], ids=lambda o: o.name)
def test_the_default_shown_is_the_default(option: Option) -> None:
    default = ("127.0.0.1", 9469) if option.name == "listen" else getattr(RunConfig(), option.field)
    assert option.parse(yaml.safe_load(option.default)) == default


@pytest.mark.parametrize("option", sorted(OWN_KEYS))
@pytest.mark.parametrize("value", ["/tmp/a\0b", ["a\0b"], {"memory.available": "1\0"}])
def test_a_nul_character_is_named_before_anything_is_done(tmp_path: Path, option: str, value: Any) -> None:
    """A path with one is an error only when it is used: the state directory's was a traceback, the recording's none."""
    own = write(tmp_path, "own.json", json.dumps({option: value}))
    with pytest.raises(ConfigError, match=f"{option}: .*(holds a NUL character|is not the name of a file)"):
        build({}, own)

"""From flags, the own `--config` file and a KubeletConfiguration to one checked `RunConfig`.

Precedence: flag > environment > own file > drop-ins > kubelet configuration > default. The origin of every value, and
of every entry of a map, is kept. Which options there are says `options`; which maps are in force is decided in
`monitor.policy.configuration`; here files are read (`files`), values parsed (`values`) and all is checked.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from monitor.errors import CannotError, ConfigError, MonitorError
from monitor.pods.spec import AUTO, CGROUPS, CLUSTER, check_spec
from monitor.policy import configuration
from monitor.policy.configuration import DEFAULT, HARD, SOFT_GRACE, Given, Settings, Source
from monitor.policy.errors import PolicyError
from monitor.policy.quantity import Quantity
from monitor.policy.releases import CURRENT, GATES, HUGE_PAGES_GATE, KUBELET_1_36, Era, era
from monitor.policy.signals import GONE, MEMORY, OWN_SIGNALS
from monitor.settings import files, values
from monitor.settings.config import ENFORCE, HOLD, RunConfig
from monitor.settings.options import FEATURE_GATES, KUBELET_KEYS, OWN_KEYS, SETTINGS, Option

if TYPE_CHECKING:
    from monitor.pods.spec import Choice

_PATHS = frozenset(setting.name for setting in SETTINGS if setting.parse is values.absolute_path)
#: Field, option, the value that needs an API server, the one that does not.
_OF_A_CLUSTER = (("evict_by", "--evict-by", "api", "kill"), ("node_taints", "--node-taints", "own", "none"))


class Resolved(NamedTuple):
    """A configuration, and what it was made of: for those who explain it."""

    config: RunConfig
    settings: Settings


def read(
    flags: Mapping[str, Any],
    config_file: str | None = None,
    kubelet_config_file: str | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
    *,
    ask_kubelet: bool = False,
) -> Resolved:
    """The checked configuration of `outrace run`, and what it was made of.

    ``flags`` maps option names (``eviction-hard``) to the values given on the command line; absent or None means not
    given. ``variables``: option name -> the variable of the environment that gave its value, instead of a flag.
    ``ask_kubelet``: without a kubelet's file, the configuration of the kubelet that runs here is the lowest layer; its
    release counts in any case.
    Raises ConfigError: one line with the option or file and key, what is wrong, and the remedy.
    """
    own = files.read_own(config_file, OWN_KEYS) if config_file else {}
    named = own.get("kubelet-config")
    if not isinstance(named, str | None) or named == "" or _has_nul(named):
        raise ConfigError(f"{config_file}: kubelet-config: {named!r} is not the name of a file")
    kubelet_config_file = kubelet_config_file or named
    options = _own_settings(flags, variables, own, config_file or "")
    file = files.read_kubelet(kubelet_config_file, KUBELET_KEYS) if kubelet_config_file else None
    if ask_kubelet and "node-cgroup" not in options:
        return _over_kubelet(options, file)
    return resolve(options, file)


def _over_kubelet(options: Mapping[str, Given], file: Source | None) -> Resolved:
    """The options of outrace over this node's kubelet, or over the ``file`` given for it; with what differs."""
    resolved = resolve(options, file)
    if file is not None and resolved.config.origins["policy"] != DEFAULT:
        return resolved  # nothing is left to ask for
    from monitor.pods.installations import find_kubelet

    kubelet = find_kubelet()
    if not (kubelet.is_there or resolved.config.kubeconfig):
        return resolved
    from monitor.pods.access import Access
    from monitor.settings.kubelet_own import differences, kubelet_release, kubelet_sources

    unread: list[str] = []
    access = Access.found(resolved.config, kubelet)
    found = kubelet_sources(access, unread.append)
    release = None if "policy" in options else _by_gate(found).get("policy") or kubelet_release(access)
    if isinstance(release, Given):
        options = {**options, "policy": release}
    resolved = resolve(options, file) if file is not None else resolve(options, found[0] if found else None, found[1:])
    config = resolved.config
    if isinstance(release, str):
        where = ", ".join(source.name for source in (file, *found) if source is not None) or "what can be read"
        why = f"{DEFAULT}; {HUGE_PAGES_GATE} is not set in {where}; {release}"
        config = dataclasses.replace(config, origins={**config.origins, "policy": why})
    if file is None:
        config = dataclasses.replace(
            config,
            kubelet_differs=differences(_parsed(options), found),
            kubelet_unread="; ".join(unread),
            hard_guessed=bool(unread) and "eviction-hard" not in options and "eviction-hard" not in kubelet.flags,
        )
    return resolved._replace(config=config)


def resolve(options: Mapping[str, Given], file: Source | None = None, drop_ins: tuple[Source, ...] = ()) -> Resolved:
    """The options of outrace itself (by option name, not parsed) over a kubelet's files. Raises ConfigError."""
    own = _by_gate(tuple(filter(None, (file, *drop_ins))))
    own |= _parsed(options)
    rules = era(own["policy"].value if "policy" in own else CURRENT.name)
    for source in filter(None, (file, *drop_ins)):
        if not isinstance(merge := source.content.get(configuration.MERGE_DEFAULTS), bool | None):
            raise ConfigError(f"{source.name}: {configuration.MERGE_DEFAULTS}: {merge!r} is not true or false")
    kubelets = {s.kubelet_key: own[s.name] for s in SETTINGS if s.kubelet_key and s.name in own}
    try:
        settings = configuration.in_force(file, drop_ins, kubelets, rules)
    except PolicyError as error:
        raise ConfigError(str(error)) from None

    found: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting in SETTINGS:
        key = setting.kubelet_key
        if key in configuration.TEXT_MAPS:
            found[setting.field], origins[setting.field] = settings.texts(key), settings.origins[key]
        elif setting.name in own:
            found[setting.field], origins[setting.field] = own[setting.name]
        elif key in settings.values:
            given = settings.values[key]
            found[setting.field], origins[setting.field] = _parse(setting, given), given.origin
        else:
            origins[setting.field] = DEFAULT
    if "listen" in found:
        found["listen_host"], found["listen_port"] = found.pop("listen")
    settle_mode(found, origins)
    found["system_reserved"], found["kube_reserved"] = _reserved(settings)
    config = RunConfig(**found, origins=origins, inputs=_to_inputs(settings))
    check_mode(config)
    _check_thresholds(config, settings, rules, {given.origin for given in own.values()})
    return Resolved(config, settings)


def _by_gate(sources: Sequence[Source]) -> dict[str, Given]:
    """The option `policy`, where a kubelet's feature gate of huge pages decides it: the last source that sets it."""
    for gate in GATES:
        for source in reversed(sources):
            gates = source.content.get(FEATURE_GATES)
            on = gates.get(gate) if isinstance(gates, dict) else None
            if on is True and gate != HUGE_PAGES_GATE:
                return {}  # as by default: the version says it
            if isinstance(on, bool):
                name = CURRENT.name if on else KUBELET_1_36.name
                return {"policy": Given(name, f"{source.name}: {FEATURE_GATES}.{gate}")}
    return {}


# Thresholds and reservations with their origins, as JSON, as they were when the daemon read them. The daemon carries
# them, so that `outrace config show` has what is in force also where a file has changed since.
def _to_inputs(settings: Settings) -> dict[str, Any]:
    values = {key: one for key, one in settings.values.items() if key in KUBELET_KEYS}
    # YAML has dates, JSON has none; no key of ours takes one.
    found: dict[str, Any] = json.loads(json.dumps({**vars(settings), "values": values}, default=str, skipkeys=True))
    return found


def resolved_again(config: RunConfig) -> Resolved:
    """What a daemon's configuration was made of (`RunConfig.inputs`), whatever its files hold now. ConfigError."""

    def given(found: Mapping[str, Any]) -> dict[str, Given]:
        return {name: Given(*one) for name, one in found.items()}

    kept = config.inputs
    try:
        maps = {key: given(entries) for key, entries in kept["maps"].items()}
        settings = Settings(maps, given(kept["values"]), kept["origins"], kept["switched_off"])
    except (LookupError, TypeError, AttributeError):
        problem = "the running daemon's configuration is another release's"
        raise ConfigError(problem, "restart the daemon, or look without it: --no-daemon") from None
    return Resolved(config, settings)


def check_enforced(config: RunConfig, choice: Choice | None = None) -> None:
    """Raises ConfigError where pods would be evicted on guesses: of ``cgroups`` alone no priority is known, requests
    come from the kernel. MonitorError where trying again will help, and where the line itself is a guess: a kubelet
    may evict below 10Mi, the default is 100Mi. Also where an API server is needed and there is none.
    """
    if config.enforce and config.hard_guessed:
        raise MonitorError(
            f"the thresholds of this node's kubelet cannot be read: {config.kubelet_unread}",
            "give --kubelet-config FILE or --eviction-hard, or the right to get nodes/configz",
        )
    error = MonitorError if choice is not None and choice.kubelet else ConfigError
    why = f" ({'; '.join((choice.why, *choice.tried))})" if choice is not None and choice.tried else ""
    for field, option, value, without in _OF_A_CLUSTER:
        if getattr(config, field) == value and check_spec(config.pods)[0] not in (AUTO, *CLUSTER):
            raise error(
                f"{config.origins.get(field, option)} {value}: the pods of --pods {config.pods} are none of a "
                f"cluster's API server{why}",
                f"give --pods apiserver or kubelet, or {option} {without}",
            )
    if config.enforce and config.pods == CGROUPS:
        raise error(
            f"{config.origins.get('enforce', '--enforce')}: with --pods cgroups no pod's spec is known{why}: "
            "priorities are unknown, requests guessed, and the wrong pod could be evicted",
            "name the directory of their manifests with --pods manifests:DIR, or the cluster with --pods apiserver",
        )


def _own_settings(
    flags: Mapping[str, Any], variables: Mapping[str, str], own: Mapping[str, Any], config_file: str
) -> dict[str, Given]:
    """The options of outrace itself: a flag, a variable of the environment, or an entry of the own file. A path that is
    typed may be relative to the working directory; in a file it means the same wherever the daemon is started.
    """
    from_file = {key: Given(value, f"{config_file}: {key}") for key, value in own.items() if value is not None}
    given = {
        name: os.path.abspath(value) if name in _PATHS and value else value
        for name, value in flags.items()
        if value is not None
    }
    return from_file | {name: Given(value, variables.get(name, f"--{name}")) for name, value in given.items()}


def _parsed(options: Mapping[str, Given]) -> dict[str, Given]:
    return {s.name: Given(_parse(s, options[s.name]), options[s.name].origin) for s in SETTINGS if s.name in options}


def _parse(setting: Option, given: Given) -> Any:
    if _has_nul(given.value):
        raise ConfigError(f"{given.origin}: holds a NUL character", "no name or path can")
    try:
        return setting.parse(given.value)
    except ValueError as error:  # PolicyError is one
        raise ConfigError(f"{given.origin}: {error}", _remedy(str(error))) from None


def _has_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nul, (*value, *value.values())))
    return any(map(_has_nul, value)) if isinstance(value, list | tuple) else isinstance(value, str) and "\0" in value


def _reserved(settings: Settings) -> Iterator[int]:
    """Bytes of memory that the system keeps, and Kubernetes itself. Every resource is checked."""
    for key in (configuration.SYSTEM_RESERVED, configuration.KUBE_RESERVED):
        memory = 0
        for name, (amount, origin) in settings.maps[key].items():
            try:
                quantity = values.reserved(name, amount)
            except ValueError as error:
                remedy = _remedy(str(error)).partition(", or a percentage")[0]  # no part of a capacity can be reserved
                raise ConfigError(f"{origin}: {name}: {amount}: {error}", remedy) from None
            memory = quantity.value if name == "memory" else memory
        yield memory


def _check_thresholds(config: RunConfig, settings: Settings, rules: Era, ours: Collection[str]) -> None:
    """Every entry by itself first: the kubelet's own messages often do not name the entry.

    ``ours``: the origins of what was said to outrace itself, where its own signals are known. A kubelet refuses to
    start with them in its file.
    """
    for key in (HARD, SOFT_GRACE, configuration.MIN_RECLAIM, configuration.SOFT):
        for signal, (text, origin) in settings.maps[key].items():
            alone = {key: {signal: text}}
            if key == configuration.SOFT:
                alone[SOFT_GRACE] = dict(config.eviction_soft_grace_period)
            try:
                rules.parse_thresholds(*(alone.get(one, {}) for one in configuration.THRESHOLDS), own=origin in ours)
                if key != SOFT_GRACE and not text.endswith("%"):
                    values.check_fits(text)
            except PolicyError as error:
                remedy = _remedy(str(error), rules, own=origin in ours)
                if signal in GONE:
                    remedy = "it is gone: use *.reclaimable, or *.available where page cache does not come back in time"
                elif signal in OWN_SIGNALS and origin not in ours:
                    remedy = "it is outrace's own, and a kubelet refuses it: give it to outrace by --eviction-hard"
                raise ConfigError(f"{origin}: {signal}: {text}: {error}", remedy) from None
    try:
        config.parse_thresholds()
    except PolicyError as error:  # whatever only shows in the whole
        raise ConfigError(f"eviction thresholds: {error}") from None


_QUANTITY = "write a quantity such as 100Mi, or a percentage such as 5%"
_PAIRS = "write --eviction-hard 'memory.available<100Mi', --eviction-minimum-reclaim 'memory.available=0Mi'"
#: What to do about a message of the kubelet that begins so; of a malformed pair, that has the first.
_REMEDIES = {
    "expect signal=": "write NAME=VALUE,..., as in memory=500Mi or memory.available=1m30s",
    "malformed pair": _PAIRS,
    "unsupported eviction signal": "signals are {signals}",
    "grace period must be": "give it one: --eviction-soft-grace-period SIGNAL=30s (evictionSoftGracePeriod)",
    "time:": "write a duration such as 90s or 1m30s",
    "quantities must": _QUANTITY,
    "unable to parse": _QUANTITY,
    "strconv": _QUANTITY,
}


def _remedy(problem: str, rules: Era | None = None, *, own: bool = False) -> str:
    """What to do about one of the kubelet's messages. ``own``: outrace's own signals are good there as well."""
    ours = f"; outrace's own {', '.join(OWN_SIGNALS)}" if own else ""
    kind = "expect signal=" if "expect signal=" in problem else next(filter(problem.startswith, _REMEDIES), "")
    return _REMEDIES.get(kind, "").format(signals=", ".join((rules or CURRENT).signals) + ours)


def settle_mode(found: MutableMapping[str, Any], origins: MutableMapping[str, str]) -> None:
    """Make `enforce` and `hold` of `--mode` and its short form `--enforce`. ConfigError where they differ."""
    mode = found.pop("mode", None)
    if mode is None:
        return
    if "enforce" in found and found["enforce"] != (mode == ENFORCE):
        short = "--enforce" if found["enforce"] else "--no-enforce"
        raise ConfigError(
            f"{origins['mode']}: {mode} differs from {short} ({origins['enforce']})",
            "give one of them: --enforce is short for --mode enforce",
        )
    found["enforce"], found["hold"] = mode != "observe", mode == HOLD
    origins["enforce"] = origins["mode"]


def check_mode(config: RunConfig) -> None:
    """Raises ConfigError for an option that the mode has no use for."""
    limit, grace, trigger = (
        config.origins.get(name, DEFAULT) for name in ("hold_limit_ns", "hard_grace_ns", "trigger")
    )
    mode, kernel = config.mode, config.trigger == "kernel"
    problem, remedy = "", ""
    if limit != DEFAULT and not config.holds:
        problem, remedy = f"{limit}: nothing is held in mode {mode}", "give --mode hold too"
    elif config.hard_grace_ns and mode != ENFORCE:
        problem, remedy = f"{grace}: no pod is killed at a hard threshold in mode {mode}", "give --mode enforce"
    elif config.hard_grace_ns and not config.kills:
        problem, remedy = f"{grace}: with --evict-by api the kubelet gives the grace", "give --evict-by kill"
    elif config.hard_grace_ns and kernel:
        problem, remedy = f"{grace}: --trigger kernel kills without any grace", "give --trigger user"
    elif config.hold and kernel:
        why = f"kernel kills at the crossing, where mode hold ({config.origins['enforce']}) brakes"
        problem, remedy = f"{trigger}: {why}", "leave --trigger out, or give --mode enforce"
    if problem:
        raise ConfigError(problem, remedy + (", or leave --hard-grace out" if problem.startswith(f"{grace}: ") else ""))


def check_kernel(config: RunConfig, cgroup_version: int) -> None:
    """Raises CannotError for an option that this version of cgroups has no brake for."""
    if config.hard_grace_ns and cgroup_version == 1:
        why = "a braked pod cannot answer SIGTERM on cgroup v1, which has no memory.high"
        remedy = "leave --hard-grace out, or boot with systemd.unified_cgroup_hierarchy=1"
        raise CannotError(f"{config.origins['hard_grace_ns']}: {why}", remedy)


def value_of(config: RunConfig, option: Option) -> Any:
    if option.name == "listen":
        return f"{config.listen_host}:{config.listen_port}"
    return getattr(config, option.field)


# The default threshold of a machine without reserved memory (``--pods services``). By the kubelet's formula all memory
# is available that neither processes nor page cache have: also what the kernel holds for itself and the pages that it
# keeps free (vm.min_free_kbytes). A node makes up for that by systemReserved and a chosen threshold. On a VM of 1 GiB
# it is some 100 MiB, so that at the kubelet's default the OOM killer comes first, and unseen. There the default means
# 100 MiB that processes can still get.


_MI = 1 << 20


def over_the_kernels_share(config: RunConfig, share: int) -> RunConfig:
    """The configuration with the default hard threshold of memory so many bytes higher; the same where a threshold was
    given, or the release has none.
    """
    rules = era(config.policy)
    default = rules.default_hard.get(MEMORY)
    if not share or default is None or config.origins.get("eviction_hard") != DEFAULT:
        return config
    resolved = resolved_again(config)
    line, kept = (-(-size // _MI) for size in (Quantity.parse(default).value, share))
    origin = f"{DEFAULT} {default}, and {kept}Mi that the kernel keeps"
    maps, origins = resolved.settings.maps, {**resolved.settings.origins, HARD: origin}
    hard = {**maps[HARD], MEMORY: Given(f"{line + kept}Mi", origin)}
    settings = dataclasses.replace(resolved.settings, maps={**maps, HARD: hard}, origins=origins)
    return dataclasses.replace(
        config,
        eviction_hard=settings.texts(HARD),
        origins={**config.origins, "eviction_hard": origin},
        inputs=_to_inputs(settings),
        kernels_share=share,
    )

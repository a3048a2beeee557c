"""The options of `outrace run`, one table: for the command line, the environment, the own file and a kubelet's.

``--eviction-hard`` is `OUTRACE_EVICTION_HARD` in the environment and ``eviction-hard`` in the own file.
`monitor.cli.options` makes click's options of the table, `monitor.settings.read` reads the files by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from monitor.kernel.rungs import AUTO, NAMES
from monitor.policy.compat import CHOICES
from monitor.policy.configuration import MERGE_DEFAULTS
from monitor.policy.releases import ERAS
from monitor.settings import values

TRIGGERS = ("user", "kernel")
KILL, API = EVICT_BY = ("kill", "api")
NODE_TAINTS = ("none", "own")
HOOKS = (AUTO, *NAMES)
LOG_FORMATS = ("logfmt", "json")

#: How an option is written on the command line: with a text, with a number, with a text and several times,
#: ``--x/--no-x``, and as the kubelet's own switches: ``--x``, ``--x=true``, ``--x=false``.
TEXT, NUMBER, TEXTS, SWITCH, KUBELET_SWITCH = "text", "number", "texts", "switch", "kubelet switch"


@dataclass(frozen=True, slots=True)
class Option:
    """`parse` raises ValueError for a wrong value. `default` is what the help shows; the default itself is that of
    RunConfig's `field` ("": a file to read, not a setting). `kubelet_key`: where a KubeletConfiguration has it.
    """

    name: str
    parse: Callable[[Any], Any]
    help: str
    metavar: str = ""
    default: str = ""
    kind: str = TEXT
    kubelet_key: str = ""
    field: str = ""
    own_file: bool = True

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "OUTRACE_" + self.name.upper().replace("-", "_")


def _setting(
    name: str,
    parse: Callable[[Any], Any],
    help: str,  # noqa: A002
    metavar: str = "",
    *,
    kubelet: bool = False,
    **rest: Any,
) -> Option:
    """``kubelet``: a KubeletConfiguration has it too, by the same name in camel case."""
    first, *others = name.split("-")
    key = first + "".join(map(str.capitalize, others)) if kubelet else ""
    return Option(name, parse, help, metavar, kubelet_key=key, **{"field": name.replace("-", "_"), **rest})


def _choice(name: str, choices: Sequence[str], help: str, **rest: Any) -> Option:  # noqa: A002
    return _setting(name, values.choice(*choices), help, "|".join(choices), **rest)


def _map(name: str, operator: str, what: str, example: str) -> Option:
    return _setting(name, values.text_map(operator), f"{what}, such as '{example}'.", "MAP", kubelet=True)


def _urls(name: str, help: str) -> Option:  # noqa: A002
    return _setting(name, values.urls(f"--{name}"), help, "URL", kind=TEXTS, field=f"{name}s")


OPTIONS = (
    Option(
        "config", values.text, "Own configuration, YAML or TOML; keys are the option names.", "FILE", own_file=False
    ),
    Option("kubelet-config", values.text, "A KubeletConfiguration, as it is.", "FILE"),
    Option("kubelet-config-dir", values.text, "Its drop-ins, *.conf, as the kubelet's --config-dir.", "DIR"),
    _setting("node-cgroup", values.text, "Treat this cgroup as the node; its limit is the capacity.", "PATH"),
    _setting(
        "pods",
        values.pods,
        "auto (the kubelet's, where there is one), kubelet[:URL], apiserver, manifests:DIR or cgroups.",
        "SOURCE",
        default="auto",
    ),
    _setting(
        "kubeconfig",
        values.absolute_path,
        "A kubeconfig with credentials for the cluster.",
        "FILE",
        default="those of the pod, or the kubelet's",
    ),
    _setting("node-name", values.text, "The node's name in the cluster.", "NAME", default="the kubelet's"),
    _setting(
        "kubelet-ca",
        values.absolute_path,
        "CA file that signed the kubelet's certificate.",
        "FILE",
        default="require the certificate in the kubelet's own directory",
    ),
    _setting(
        "kubelet-insecure",
        values.boolean,
        "Take any certificate of a kubelet on this machine's own address 127.0.0.1.",
        kind=SWITCH,
    ),
    _setting(
        "cgroup-root",
        values.optional_text,
        "As the kubelet's --cgroup-root: kubepods is below it.",
        "PATH",
        default="the root",
        kubelet=True,
    ),
    _setting("enforce", values.boolean, "Really evict. The default only observes and logs.", kind=SWITCH),
    _setting(
        "enforce-unknown-specs",
        values.boolean,
        "Evict although --pods cgroups knows neither priorities nor all critical pods.",
        kind=SWITCH,
    ),
    _choice("trigger", TRIGGERS, "Who kills under --enforce: user space, or the BPF program too."),
    _choice(
        "evict-by",
        EVICT_BY,
        "How --enforce evicts: kill, at once; or api, by pods/eviction, which asks PodDisruptionBudgets.",
        default=KILL,
    ),
    _choice(
        "node-taints",
        NODE_TAINTS,
        "Taint the node while a condition holds: own is outrace.io/memory-pressure:NoSchedule and so on.",
        default=NODE_TAINTS[0],
    ),
    _choice("policy", ERAS, "The release whose policy decides.", default=ERAS[0]),
    _choice(
        "compat",
        CHOICES,
        "What to do where that release has a defect: correct it (sane) or repeat it.",
        default=CHOICES[0],
    ),
    _map("eviction-hard", "<", "Hard eviction thresholds", "memory.available<100Mi"),
    _map("eviction-soft", "<", "Soft eviction thresholds", "memory.available<300Mi"),
    _map(
        "eviction-soft-grace-period",
        "=",
        "How long a soft threshold has to be met before pods are evicted",
        "memory.available=1m30s",
    ),
    _setting(
        "eviction-max-pod-grace-period",
        values.seconds,
        "Longest grace of a soft eviction.",
        "SECONDS",
        kind=NUMBER,
        kubelet=True,
        field="eviction_max_pod_grace_period_s",
    ),
    _map(
        "eviction-minimum-reclaim",
        "=",
        "How far above its threshold a signal has to be brought back",
        "memory.available=0Mi",
    ),
    _setting(
        "eviction-pressure-transition-period",
        values.duration_ns,
        "How long a condition stays.",
        "DURATION",
        default="5m",
        kubelet=True,
        field="eviction_pressure_transition_period_ns",
    ),
    _setting(
        "enforce-node-allocatable",
        values.enforceable,
        "As the kubelet's --enforce-node-allocatable.",
        "LIST",
        default="pods",
        kubelet=True,
    ),
    _map("system-reserved", "=", "Reserved for daemons of the system", "memory=500Mi"),
    _map("kube-reserved", "=", "Reserved for daemons of Kubernetes", "memory=500Mi"),
    _setting(
        "kernel-memcg-notification",
        values.boolean,
        "Accepted for compatibility; no effect.",
        kind=KUBELET_SWITCH,
        kubelet=True,
    ),
    _setting(
        "local-storage-capacity-isolation",
        values.boolean,
        "Evict pods over their own limits of local storage.",
        default="true",
        kind=KUBELET_SWITCH,
        kubelet=True,
        field="local_storage",
    ),
    _setting("nodefs", values.absolute_path, "A path on the node's file system.", "PATH", default="found at start"),
    _setting("imagefs", values.absolute_path, "A path on the file system of images.", "PATH", default="found at start"),
    _setting(
        "containerfs",
        values.absolute_path,
        "A path on the file system of writable layers.",
        "PATH",
        default="that of images",
    ),
    _setting(
        "reclaim-containers",
        values.command,
        "Command that removes dead containers, run before pods are evicted.",
        "COMMAND",
        default="none",
    ),
    _setting(
        "reclaim-images",
        values.command,
        "Command that removes unused images, such as 'crictl rmi --prune', run before pods are evicted.",
        "COMMAND",
        default="none",
    ),
    _setting(
        "hooks",
        values.choice(*HOOKS),
        f"How to learn of memory: auto (the best there is), {', '.join(NAMES)}.",
        "NAME",
        default=AUTO,
    ),
    _setting(
        "max-fill-rate",
        values.size,
        "How much the machine can fault in per second.",
        "BYTES",
        default="6Gi for each CPU, at most 96Gi",
    ),
    _setting("step", values.size, "Rank a pod again after it moved by this much.", "BYTES", default="1Mi"),
    _setting(
        "listen", values.listen, "Serve /metrics and the rest on this address.", "HOST:PORT", default="127.0.0.1:9469"
    ),
    _setting("record", values.record, "Record every input to FILE, for outrace replay.", "FILE"),
    _urls("alertmanager", "Push alerts to this Alertmanager; repeatable."),
    _urls("webhook", "POST every alert to this URL; repeatable."),
    _setting(
        "state-dir", values.path, "Where statuses of evicted pods and the lock live.", "DIR", default="/var/lib/outrace"
    ),
    _choice("log-format", LOG_FORMATS, "How log lines look.", default=LOG_FORMATS[0]),
)
#: Those that are a field of RunConfig.
SETTINGS = tuple(option for option in OPTIONS if option.field)
OWN_KEYS = tuple(option.name for option in OPTIONS if option.own_file)
KUBELET_KEYS = (*(option.kubelet_key for option in SETTINGS if option.kubelet_key), MERGE_DEFAULTS)

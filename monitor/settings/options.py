"""The options of `outrace run`, one table: for the command line, the environment, the own file and a kubelet's.

``--eviction-hard`` is `OUTRACE_EVICTION_HARD` in the environment and ``eviction-hard`` in the own file.
`monitor.cli.options` makes click's options of the table, and `monitor.settings.read` reads the files by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from monitor.kernel.charging import AUTO, NAMES, POLL
from monitor.policy.configuration import MERGE_DEFAULTS
from monitor.policy.releases import ERAS
from monitor.policy.signals import MEMORY
from monitor.settings import values
from monitor.settings.config import MODES, STATE_DIR

#: How an option is written on the command line: with a text, with a number, with a text and several times,
#: ``--x/--no-x``, and as the kubelet's own switches: ``--x``, ``--x=true``, ``--x=false``.
TEXT, NUMBER, TEXTS, SWITCH, KUBELET_SWITCH = "text", "number", "texts", "switch", "kubelet switch"
#: ... what only the own file has, and what only a KubeletConfiguration has.
OWN_KEY, KEY = "own key", "key"

HOOKS = (AUTO, *NAMES)


@dataclass(frozen=True, slots=True)
class Option:
    """`parse` raises ValueError for a wrong value. `help` ends with the default in brackets; the default itself is that
    of RunConfig's `field` ("": a file to read, not a setting). `kubelet_key`: where a KubeletConfiguration has it.
    """

    name: str
    parse: Callable[[Any], Any]
    metavar: str
    help: str
    kind: str = TEXT
    kubelet_key: str = ""
    field: str = ""
    own_file: bool = True

    @property
    def default(self) -> str:
        """As the help shows it."""
        return self.help.rpartition(" [")[2].removesuffix("]") if self.help.endswith("]") else ""


def variable_of(name: str) -> str:
    """The name of an option in the environment."""
    return "OUTRACE_" + name.upper().replace("-", "_")


def _setting(declared: str, parse: Callable[[Any], Any], text: str, kubelet: bool = False, **rest: Any) -> Option:
    """``declared``: name and metavar. ``kubelet``: a KubeletConfiguration has it too, by its name in camel case."""
    name, _, metavar = declared.partition(" ")
    first, *others = name.split("-")
    key = first + "".join(map(str.capitalize, others)) if kubelet else ""
    field = name.replace("-", "_") + _UNITS.get(parse, "")
    return Option(name, parse, metavar, text, kubelet_key=key, **{"field": field, **rest})


#: A duration or a number -> the unit in the name of its field.
_UNITS: dict[Callable[[Any], Any], str] = {
    **dict.fromkeys((values.duration_ns, values.positive_duration_ns, values.whole_seconds_ns), "_ns"),
    values.whole_number: "_s",
}


def _file(declared: str, text: str, **rest: Any) -> Option:
    """A file of settings, no setting itself."""
    return _setting(declared, values.text, text, field="", **rest)


def _own(name: str, parse: Callable[[Any], Any], text: str, **rest: Any) -> Option:
    """A key of the own file alone."""
    return _setting(name, parse, text, kind=OWN_KEY, **rest)


def _key(name: str, parse: Callable[[Any], Any], text: str, **rest: Any) -> Option:
    """A key of a KubeletConfiguration that is no option of ours."""
    return _setting(name, parse, text, True, kind=KEY, own_file=False, **rest)


def _switch(name: str, text: str) -> Option:
    return _setting(name, values.boolean, f"{text} [false]", kind=SWITCH)


def _choice(name: str, choices: Sequence[str], text: str, metavar: str = "", **gone: str) -> Option:
    """The first is the default. ``gone``: a value of earlier versions -> what to write instead."""
    declared = f"{name} {metavar or '|'.join(choices)}"
    return _setting(declared, values.choice(choices, gone), f"{text} [{choices[0]}]")


def _text_map(name: str, operator: str, what: str, example: str, default: str = "none") -> Option:
    """A map of signals or resources to amounts, as a kubelet's file or flag has it."""
    text = f"{what}, such as '{example}'. [{default}]"
    return _setting(f"{name} MAP", values.text_map(operator, example), text, True)


def _eviction(name: str, what: str, value: str, default: str = "none") -> Option:
    """A map of signals to what follows them in a flag."""
    return _text_map(f"eviction-{name}", value[0], what, f"{MEMORY}{value}", default)


OPTIONS: tuple[Option, ...] = (
    # Files
    _file("config FILE", "Read this configuration file (YAML); keys are the option names.", own_file=False),
    # A node with a kubelet does not need it: outrace reads the kubelet's own settings, drop-ins included.
    _file("kubelet-config FILE", "Read this KubeletConfiguration, unchanged. [that of the kubelet of this node]"),
    # Node and pods
    _setting(
        "node-cgroup PATH", values.text, "Treat this cgroup as the node; its limit is the capacity. [the whole machine]"
    ),
    _setting(
        "pods SOURCE",
        values.pods,
        "Where pods come from: auto (the kubelet if there is one, else services), kubelet[:URL], apiserver, "
        "manifests:DIR, services or cgroups. [auto]",
    ),
    _own("services", values.services, "Priority, request, grace and never of services, by pattern. [none]"),
    # Credentials of its own can have fewer rights than the kubelet's. Only its exec plugin runs.
    _setting(
        "kubeconfig FILE",
        values.absolute_path,
        "Read credentials for the cluster from this kubeconfig. [those of the pod, or the kubelet's]",
    ),
    # Known where the kubelet is seen; in a pod without the host's network it has to be given.
    _setting("node-name NAME", values.text, "Name of the node in the cluster. [the kubelet's]"),
    # What answers on the kubelet's port decides which pod is evicted: it has to show that it is the kubelet.
    _setting(
        "kubelet-ca FILE",
        values.absolute_path,
        "Trust a kubelet whose certificate this CA signed. [require the certificate in the kubelet's own directory]",
    ),
    _key("cgroup-root", values.optional_text, "kubepods is below it. [the root]"),
    # What is done at a crossing
    _choice(
        "mode",
        MODES,
        "At a crossing: observe only reports; hold stops the growing pod until memory is free again, and below the "
        "kill threshold or after --hold-limit the policy decides; enforce kills at once.",
    ),
    _switch("enforce", "The same as --mode enforce."),
    # A pod that stands still for longer fails its probes; what would have made room has had time.
    _setting(
        "hold-limit DURATION",
        values.positive_duration_ns,
        "Maximum time that a pod is held before the policy decides, plus --hard-grace; in all at most twice that. [2m]",
    ),
    # None: at a hard threshold memory is gone in milliseconds, and the kubelet gives no grace either.
    _setting(
        "hard-grace DURATION",
        values.whole_seconds_ns,
        "With --mode enforce on cgroup v2: hold, send SIGTERM, and SIGKILL after this or below the kill threshold. "
        "[none]",
    ),
    # User space asks everything once more before it kills; kernel is for thresholds of less than 1 MiB.
    _choice("trigger", ("user", "kernel"), "What kills under --enforce: user space alone, or the BPF program too."),
    # An eviction by the API takes seconds, and the OOM killer does not wait.
    _choice(
        "evict-by",
        ("kill", "api"),
        "How --enforce evicts: kill sends SIGKILL; api requests pods/eviction, which respects PodDisruptionBudgets.",
    ),
    # None: the kubelet's own conditions taint the node too, and taints take rights in the cluster.
    _choice(
        "node-taints",
        ("none", "own"),
        "Taint the node while a condition lasts; own: outrace.io/memory-pressure:NoSchedule and the like.",
    ),
    # Policy and thresholds
    _choice("policy", ERAS, "Release of the kubelet whose policy decides."),
    # Naming one signal switches the other defaults off, as in the kubelet.
    _eviction("hard", "Hard eviction thresholds", "<100Mi", "those of the release"),
    _eviction("soft", "Soft eviction thresholds", "<300Mi"),
    _eviction("soft-grace-period", "Time that a soft threshold must be met before an eviction", "=1m30s"),
    # 0, the kubelet's default, kills at once; below 0 each pod has its own grace.
    _setting(
        "eviction-max-pod-grace-period SECONDS",
        values.whole_number,
        "Maximum grace of a soft eviction; below 0 the pod's own. [0]",
        True,
        kind=NUMBER,
    ),
    # Without it a node that is just above the threshold crosses it again at the next allocation.
    _eviction("minimum-reclaim", "Distance above its threshold to which evictions bring a signal", "=0Mi"),
    _setting(
        "eviction-pressure-transition-period DURATION",
        values.duration_ns,
        "Time that a condition lasts after its threshold is clear. [5m]",
        True,
    ),
    _own(
        "stall",
        values.stall_rules,
        "Report a pod that waits for memory for more than this share of the grace; none: never. [pod>50%,grace=10s]",
    ),
    _key(
        "enforce-node-allocatable",
        values.enforceable,
        "With pods: the hard threshold for memory counts for the memory of all pods together too. [pods]",
    ),
    # Taken off what pods may use; both have to be the kubelet's.
    _text_map("system-reserved", "=", "Reserve for the daemons of the system", "memory=500Mi"),
    _text_map("kube-reserved", "=", "Reserve for the daemons of Kubernetes", "memory=500Mi"),
    # Every threshold is compared in the kernel already.
    _setting(
        "kernel-memcg-notification",
        values.boolean,
        "Accepted for compatibility; no effect. [false]",
        True,
        kind=KUBELET_SWITCH,
    ),
    _key(
        "local-storage-capacity-isolation",
        values.boolean,
        "Evict pods over their own limits of local storage. [true]",
        field="local_storage",
    ),
    # Disks, found by where the kubelet and the container runtime keep their files
    _setting("nodefs PATH", values.absolute_path, "Path on the node's file system. [found at start]"),
    _setting(
        "imagefs PATH", values.absolute_path, "Path on the file system of images and writable layers. [found at start]"
    ),
    # None: outrace removes nothing that it was not told to. Beside a kubelet it is the kubelet's work.
    _setting(
        "reclaim-images crictl|podman|COMMAND",
        values.prunes_images,
        "Free disk space before pods are evicted: crictl (`crictl rmi --prune`), podman (`podman image prune --all "
        "--force`), or a command. [none]",
    ),
    # How memory is watched
    _choice(
        "hooks",
        HOOKS,
        f"How to watch memory: auto (the best that works), {', '.join(NAMES)}.",
        "NAME",
        psi=POLL,
        eventfd=POLL,
        fentry="kprobe",
    ),
    # The daemon. Only this machine: the server knows no users.
    _setting(
        "listen HOST:PORT",
        values.listen,
        "Serve /healthz, /readyz, /metrics and /stats/summary on this address. [127.0.0.1:9469]",
    ),
    # Off: both name the pods of all tenants. The probes /healthz and /readyz are always answered.
    _switch("expose-metrics", "Answer /metrics and /stats/summary to other hosts and pods too."),
    _setting("record FILE", values.record, "Record every input to FILE, for outrace replay. [none]"),
    _setting(
        "alertmanager URL",
        values.alertmanagers,
        "Push alerts to this Alertmanager; repeatable. [none]",
        kind=TEXTS,
        field="alertmanagers",
    ),
    # Incidents, alerts that wait, and what has to be undone survive a restart of the machine there.
    _setting("state-dir DIR", values.path, f"Keep incidents and the lock here. [{STATE_DIR}]"),
    _choice("log-format", ("logfmt", "json"), "Format of log lines."),
)
#: Options of `outrace run` and of the commands that are gone, and keys of the own file: what to do instead.
GONE_OPTIONS = {
    **{
        name: f"write {option} into the file of --kubelet-config; the kubelet of this node is asked for it"
        for name, option in (
            ("cgroup-root", "cgroupRoot"),
            ("enforce-node-allocatable", "enforceNodeAllocatable"),
            ("local-storage-capacity-isolation", "localStorageCapacityIsolation"),
        )
    },
    "compat": "leave it out: defects of the kubelet are corrected; `outrace conformance` compares them",
    "containerfs": "leave it out: writable layers are taken to be where images are (--imagefs)",
    **dict.fromkeys(("daemon", "name"), "leave it out: one daemon runs on a machine"),
    "enforce-unknown-specs": "use --pods manifests:DIR, kubelet or apiserver: to evict, outrace needs the pods' specs",
    "guide-oom-killer": "leave it out: modes hold and enforce guide the OOM killer to the next victim",
    "hold-brake": "leave it out: a held pod is capped and frozen",
    **dict.fromkeys(
        ("keep", "keep-per-namespace", "keep-per-owner"), "use --older-than, also with -n, -l, --node or --owner-kind"
    ),
    "kubelet-insecure": "give --kubelet-ca FILE, or mount the kubelet's own certificates",
    "kubelet-config-dir": "leave it out, and --kubelet-config: the kubelet of this node is asked, drop-ins included",
    "max-fill-rate": "leave it out: it is 6 GiB/s for each CPU, at most 96",
    "never-kill": "use --mode hold --evict-by api, with which outrace kills no pod",
    "reclaim-containers": "name a command that removes both with --reclaim-images COMMAND",
    "runbook-url": "leave it out: an Alertmanager's template can put a URL before the annotation runbook_url",
    "run-dir": "set OUTRACE_RUN_DIR for the daemon and its commands",
    "step": "leave it out: a pod is ranked again after it moved by 1 MiB",
    "webhook": "use --alertmanager: an Alertmanager has webhooks as receivers (`webhook_configs`)",
}
#: Those that are a field of RunConfig.
SETTINGS = tuple(option for option in OPTIONS if option.field)
OWN_KEYS = tuple(option.name for option in OPTIONS if option.own_file)
KUBELET_KEYS = (*(option.kubelet_key for option in SETTINGS if option.kubelet_key), MERGE_DEFAULTS)
#: What its release is known by: another key of its file, or its version.
FEATURE_GATES = "featureGates"

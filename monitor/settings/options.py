"""The options of `outrace run`, one table: for the command line, the environment, the own file and a kubelet's.

``--eviction-hard`` is `OUTRACE_EVICTION_HARD` in the environment and ``eviction-hard`` in the own file.
`monitor.cli.options` makes click's options of the table, `monitor.settings.read` reads the files by it, and
`monitor.settings.documented` makes the example of it.
"""

from __future__ import annotations

from monitor.kernel.rungs import AUTO, NAMES, POLL
from monitor.policy.configuration import MERGE_DEFAULTS
from monitor.policy.releases import ERAS
from monitor.settings.config import MODES
from monitor.settings.option import (
    ABSOLUTE_PATH,
    BOOLEAN,
    DIRECTORY,
    DURATION,
    ENFORCEABLE,
    FILE_NAME,
    IMAGE_PRUNE,
    KEY,
    KUBELET_SWITCH,
    LISTEN,
    NAME,
    NUMBER,
    OPTIONAL_PATH,
    PERIOD,
    PODS,
    RECORDING,
    SECONDS,
    SERVICES,
    SWITCH,
    TABLE,
    TEXT,
    TEXTS,
    WHOLE_SECONDS,
    Option,
    choice,
    key,
    setting,
    switch,
    text_map,
    urls,
)

__all__ = ["KEY", "KUBELET_SWITCH", "NUMBER", "SWITCH", "TABLE", "TEXT", "TEXTS", "Option"]

HOOKS = (AUTO, *NAMES)
LOG_FORMATS = ("logfmt", "json")
TRIGGERS = ("user", "kernel")
EVICT_BY = ("kill", "api")
NODE_TAINTS = ("none", "own")

_CROSSING: tuple[Option, ...] = (
    choice(
        "mode",
        MODES,
        "At a crossing: observe logs, hold brakes the pod until room is there again and kills only below a "
        "second line, enforce kills at once.",
        why="Nobody is touched before somebody asks for it.",
    ),
    switch("enforce", "Short for --mode enforce.", why="As short as possible; mode says the same."),
    setting(
        "hold-limit",
        DURATION,
        "After so long the policy decides, and a pod is held no longer than twice that; --hard-grace comes on top.",
        default="2m",
        field="hold_limit_ns",
        why="A pod that stands still for longer fails its probes; what would have made room has had time.",
    ),
    setting(
        "hard-grace",
        WHOLE_SECONDS,
        "With --mode enforce on cgroup v2: brake, then SIGTERM, and SIGKILL after this or below the second line.",
        default="none",
        example="5s",
        field="hard_grace_ns",
        why="None: at a hard threshold memory is gone in milliseconds, and the kubelet gives no grace either.",
    ),
    choice(
        "trigger",
        TRIGGERS,
        "Who kills under --enforce: user space, or the BPF program too.",
        why="User space asks everything once more before it kills; kernel is for thresholds of less than 1 MiB.",
    ),
    choice(
        "evict-by",
        EVICT_BY,
        "How --enforce evicts: kill, at once; or api, by pods/eviction, which asks PodDisruptionBudgets.",
        why="An eviction by the API takes seconds, and the OOM killer does not wait.",
    ),
    choice(
        "node-taints",
        NODE_TAINTS,
        "Taint the node while a condition holds: own is outrace.io/memory-pressure:NoSchedule and so on.",
        why="None: the kubelet's own conditions taint the node too, and taints take rights in the cluster.",
    ),
)


_THRESHOLDS: tuple[Option, ...] = (
    choice(
        "policy",
        ERAS,
        "The release whose policy decides.",
        why="The newest release that the recorded cases cover; an older node is compared with its own.",
    ),
    text_map(
        "eviction-hard",
        "<",
        "Hard eviction thresholds",
        "memory.available<100Mi",
        default="those of the release",
        live=True,
        why="Below it pods are evicted at once. 100Mi is the kubelet's default, so both decide alike; with --pods "
        "services what the kernel keeps for itself comes on top. Naming one signal switches the other defaults off, "
        "as in the kubelet.",
    ),
    text_map(
        "eviction-soft",
        "<",
        "Soft eviction thresholds",
        "memory.available<300Mi",
        default="none",
        live=True,
        why="Below it pods are evicted with a grace, but only after the grace period. The kubelet has none by default.",
    ),
    text_map(
        "eviction-soft-grace-period",
        "=",
        "How long a soft threshold has to be met before pods are evicted",
        "memory.available=1m30s",
        default="none",
        live=True,
        why="A short peak is no reason to evict. Every soft threshold needs one.",
    ),
    setting(
        "eviction-max-pod-grace-period",
        SECONDS,
        "Longest grace of a soft eviction.",
        kind=NUMBER,
        kubelet=True,
        field="eviction_max_pod_grace_period_s",
        default="0",
        live=True,
        why="Bounds how long a pod that is to go may stay. 0, the kubelet's default, kills at once; below 0 each pod "
        "has its own grace.",
    ),
    text_map(
        "eviction-minimum-reclaim",
        "=",
        "How far above its threshold a signal has to be brought back",
        "memory.available=0Mi",
        default="none",
        live=True,
        why="Without it a node that is just above the threshold crosses it again at the next allocation.",
    ),
    setting(
        "eviction-pressure-transition-period",
        PERIOD,
        "How long a condition stays.",
        default="5m",
        kubelet=True,
        field="eviction_pressure_transition_period_ns",
        live=True,
        why="Keeps the node's condition from flapping around a threshold; the kubelet's default.",
    ),
    key(
        "enforce-node-allocatable",
        ENFORCEABLE,
        "With pods the hard threshold for memory holds for the memory of all pods together too.",
        default="pods",
    ),
    text_map(
        "system-reserved",
        "=",
        "Reserved for daemons of the system",
        "memory=500Mi",
        default="none",
        why="Is taken off what pods may use; has to be the kubelet's.",
    ),
    text_map(
        "kube-reserved",
        "=",
        "Reserved for daemons of Kubernetes",
        "memory=500Mi",
        default="none",
        why="Is taken off what pods may use; has to be the kubelet's.",
    ),
    setting(
        "kernel-memcg-notification",
        BOOLEAN,
        "Accepted for compatibility; no effect.",
        kind=KUBELET_SWITCH,
        kubelet=True,
        default="false",
        why="Every threshold is compared in the kernel already.",
    ),
    key(
        "local-storage-capacity-isolation",
        BOOLEAN,
        "Evict pods over their own limits of local storage.",
        default="true",
        field="local_storage",
    ),
)


#: The table, by what the options are about.
GROUPS: tuple[tuple[str, tuple[Option, ...]], ...] = (
    (
        "Files",
        (
            setting(
                "config",
                FILE_NAME,
                "Own configuration, YAML or TOML; keys are the option names.",
                field="",
                own_file=False,
            ),
            setting(
                "kubelet-config",
                FILE_NAME,
                "A KubeletConfiguration, as it is.",
                default="that of the kubelet of this node",
                field="",
                example="/var/lib/kubelet/config.yaml",
                why="So that nothing has to be written twice. Where a kubelet runs it is asked, for its drop-ins too.",
            ),
        ),
    ),
    (
        "Node and pods",
        (
            setting(
                "node-cgroup",
                NAME,
                "Treat this cgroup as the node; its limit is the capacity.",
                "PATH",
                default="the whole machine",
                example="/node.slice",
                why="For a node within a machine, and to try outrace where nothing else is at risk.",
            ),
            setting(
                "pods",
                PODS,
                "auto (the kubelet's, where there is one, else services), kubelet[:URL], apiserver, manifests:DIR, "
                "services or cgroups.",
                default="auto",
                why="What is right on a node and on a plain VM; the log says what was chosen and why.",
            ),
            setting(
                "services",
                SERVICES,
                "Priority, request, grace and never of services, by pattern.",
                kind=TABLE,
                default="none",
                example={
                    "system/batch*": {"priority": -10},
                    "postgresql*": {"priority": 100, "request": "2Gi", "grace": "90s"},
                    "vault": {"never": True},
                },
                live=True,
                why="Who is evicted first where no Kubernetes says it. The first pattern that fits counts; units and "
                "labels say the rest.",
            ),
            setting(
                "kubeconfig",
                ABSOLUTE_PATH,
                "A kubeconfig with credentials for the cluster.",
                "FILE",
                default="those of the pod, or the kubelet's",
                example="/etc/outrace/kubeconfig",
                why="Credentials of its own can have fewer rights than the kubelet's. Only its exec plugin runs.",
            ),
            setting(
                "node-name",
                NAME,
                "The node's name in the cluster.",
                default="the kubelet's",
                example="node-1",
                why="Known where the kubelet is seen; in a pod without the host's network it has to be given.",
            ),
            setting(
                "kubelet-ca",
                ABSOLUTE_PATH,
                "CA file that signed the kubelet's certificate.",
                "FILE",
                default="require the certificate in the kubelet's own directory",
                example="/etc/kubernetes/pki/kubelet-ca.crt",
                why="Who answers on the kubelet's port decides who is evicted: it has to show who it is.",
            ),
            key("cgroup-root", OPTIONAL_PATH, "kubepods is below it.", default="the root", example="/kubelet"),
        ),
    ),
    ("What is done at a crossing", _CROSSING),
    ("Policy and thresholds", _THRESHOLDS),
    (
        "Disks",
        (
            setting(
                "nodefs",
                ABSOLUTE_PATH,
                "A path on the node's file system.",
                default="found at start",
                example="/var/lib/kubelet",
                why="Found by where the kubelet and the container runtime keep their files.",
            ),
            setting(
                "imagefs",
                ABSOLUTE_PATH,
                "A path on the file system of images and writable layers.",
                default="found at start",
                example="/var/lib/containerd",
                why="As nodefs.",
            ),
            setting(
                "reclaim-images",
                IMAGE_PRUNE,
                "What makes room on a disk before pods are evicted: crictl (`crictl rmi --prune`), podman "
                "(`podman image prune --all --force`), or a command.",
                default="none",
                example="crictl",
                why="None: outrace removes nothing that it was not told to. Beside a kubelet it is the kubelet's work.",
            ),
        ),
    ),
    (
        "How memory is watched",
        (
            choice(
                "hooks",
                HOOKS,
                f"How to learn of memory: auto (the best there is), {', '.join(NAMES)}.",
                "NAME",
                gone={"psi": POLL, "eventfd": POLL},
                why="The best hook that this kernel and these privileges allow; a name makes its lack an error.",
            ),
        ),
    ),
    (
        "The daemon",
        (
            setting(
                "listen",
                LISTEN,
                "Serve /healthz, /readyz, /metrics and /stats/summary on this address.",
                default="127.0.0.1:9469",
                why="Only this machine: the server knows no users.",
            ),
            switch(
                "expose-metrics",
                "Answer /metrics and /stats/summary to other hosts and pods too.",
                why="Off: both name the pods of all tenants. The probes /healthz and /readyz are always answered.",
            ),
            setting(
                "record",
                RECORDING,
                "Record every input to FILE, for outrace replay.",
                default="none",
                example="/var/tmp/outrace.rec",
                why="Takes disk space all the time; for finding out why a decision was made.",
            ),
            urls(
                "alertmanager",
                "Push alerts to this Alertmanager; repeatable.",
                default="none",
                example=["http://127.0.0.1:9093"],
                live=True,
                why="An alert is there within a second; a rule on metrics waits for the next scrape.",
            ),
            urls(
                "webhook",
                "POST every alert to this URL; repeatable.",
                default="none",
                example=["http://127.0.0.1:8080/outrace"],
                live=True,
                why="For receivers that are no Alertmanager.",
            ),
            setting(
                "state-dir",
                DIRECTORY,
                "Where statuses of evicted pods and the lock live.",
                default="/var/lib/outrace",
                why="Incidents, alerts that wait, and what has to be undone survive a restart of the machine there.",
            ),
            choice("log-format", LOG_FORMATS, "How log lines look.", why="Readable without a tool; json for machines."),
        ),
    ),
)
OPTIONS = tuple(option for _, options in GROUPS for option in options)
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
    "run-dir": "set OUTRACE_RUN_DIR for the daemon and its commands",
    "step": "leave it out: a pod is ranked again after it moved by 1 MiB",
}
#: Those that are a field of RunConfig.
SETTINGS = tuple(option for option in OPTIONS if option.field)
OWN_KEYS = tuple(option.name for option in OPTIONS if option.own_file)
KUBELET_KEYS = (*(option.kubelet_key for option in SETTINGS if option.kubelet_key), MERGE_DEFAULTS)

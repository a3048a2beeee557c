"""The options of `outrace run`, one table: for the command line, the environment, the own file and a kubelet's.

``--eviction-hard`` is `OUTRACE_EVICTION_HARD` in the environment and ``eviction-hard`` in the own file.
`monitor.cli.options` makes click's options of the table, `monitor.settings.read` reads the files by it, and
`monitor.settings.documented` makes the example and the JSON schema of it.
"""

from __future__ import annotations

from monitor.kernel.rungs import AUTO, NAMES, POLL
from monitor.policy.configuration import MERGE_DEFAULTS
from monitor.settings.crossing_options import CROSSING_OPTIONS
from monitor.settings.option import (
    ABSOLUTE_PATH,
    DIRECTORY,
    FILE_NAME,
    IMAGE_PRUNE,
    KEY,
    KUBELET_SWITCH,
    LISTEN,
    NAME,
    NUMBER,
    OPTIONAL_PATH,
    PODS,
    RECORDING,
    SERVICES,
    SWITCH,
    TABLE,
    TEXT,
    TEXTS,
    Option,
    choice,
    key,
    setting,
    switch,
    urls,
)
from monitor.settings.threshold_options import THRESHOLD_OPTIONS

__all__ = ["KEY", "KUBELET_SWITCH", "NUMBER", "SWITCH", "TABLE", "TEXT", "TEXTS", "Option"]

HOOKS = (AUTO, *NAMES)
LOG_FORMATS = ("logfmt", "json")

#: The table, by what the options are about.
GROUPS: tuple[tuple[str, tuple[Option, ...]], ...] = (
    (
        "Files",
        (
            Option(
                "config",
                FILE_NAME,
                "Own configuration, YAML or TOML; keys are the option names.",
                "FILE",
                own_file=False,
            ),
            Option(
                "kubelet-config",
                FILE_NAME,
                "A KubeletConfiguration, as it is.",
                "FILE",
                default="that of the kubelet of this node",
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
                "SOURCE",
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
                "NAME",
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
    ("What is done at a crossing", CROSSING_OPTIONS),
    ("Policy and thresholds", THRESHOLD_OPTIONS),
    (
        "Disks",
        (
            setting(
                "nodefs",
                ABSOLUTE_PATH,
                "A path on the node's file system.",
                "PATH",
                default="found at start",
                example="/var/lib/kubelet",
                why="Found by where the kubelet and the container runtime keep their files.",
            ),
            setting(
                "imagefs",
                ABSOLUTE_PATH,
                "A path on the file system of images and writable layers.",
                "PATH",
                default="found at start",
                example="/var/lib/containerd",
                why="As nodefs.",
            ),
            setting(
                "reclaim-images",
                IMAGE_PRUNE,
                "What makes room on a disk before pods are evicted: crictl (`crictl rmi --prune`), podman "
                "(`podman image prune --all --force`), or a command.",
                "crictl|podman|COMMAND",
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
                "HOST:PORT",
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
                "FILE",
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
                "DIR",
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

"""The configuration of `outrace run`, checked and complete: one frozen value for the hot process and the side.

It crosses an `execv` as JSON in a memfd (``OUTRACE_CONFIG_FD``), so both processes see exactly what was checked, also
when a file has changed since. Reading flags and files is `monitor.settings.read`; this module stays small because
the hot process imports it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from monitor.pods.spec import SERVICES
from monitor.policy.compat import SANE
from monitor.policy.signals import OF_DOMAIN, OWN_SIGNALS, PID
from monitor.policy.thresholds import DEFAULT_HARD, DEFAULT_TRANSITION_PERIOD_NS, LESS_THAN, Threshold

if TYPE_CHECKING:
    from monitor.policy.eviction_pass import PassConfig

#: Environment variable with the number of the inherited descriptor that holds the JSON.
CONFIG_FD = "OUTRACE_CONFIG_FD"
CHANNEL_FD = "OUTRACE_CHANNEL_FD"
STATS_FD = "OUTRACE_STATS_FD"
#: The timer that the side winds up.
HEARTBEAT_FD = "OUTRACE_HEARTBEAT_FD"
#: Pid of a side process already started, and the descriptors of both ends of its channel and of its timer.
SIDE = "OUTRACE_SIDE"

#: `monitor.policy.releases.CURRENT.name`, spelt out because that module is read only when thresholds are asked for.
CURRENT_POLICY = "kubelet-1.37"
#: Bytes that a pod moves before it is ranked again: small against any threshold, few records at full speed.
STEP = 1 << 20
STATE_DIR = "/var/lib/outrace"
#: What is done about a pod at a crossing: logged, braked, killed.
OBSERVE, HOLD, ENFORCE = MODES = ("observe", "hold", "enforce")


def fastest_fill() -> int:
    """Bytes per second that this machine can fault in at most, with room to spare. A CPU that clears huge pages hands
    out 5.1 GiB/s (measured: 5.8 alone, 10.2 on two); 96 GiB/s is more than the memory of any one socket writes.
    """
    return min(6 * (os.cpu_count() or 1), 96) << 30


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything `outrace run` needs to know. Sizes are bytes, times name their unit."""

    node_cgroup: str | None = None  # absolute directory; None: the whole machine
    pods: str = "auto"  # until `outrace run` starts: then what was chosen
    kubeconfig: str = ""  # absolute; "": as found (`monitor.pods.access`), like the next two
    node_name: str = ""
    kubelet_ca: str = ""
    #: Flags of the kubelet that `outrace run` found: its name for the node, where its certificates are.
    kubelet_flags: Mapping[str, str] = field(default_factory=dict)
    kubelet_differs: tuple[str, ...] = ()  # where an option differs from the kubelet, a line each
    kubelet_unread: str = ""  # why the kubelet's own configuration is not known, though it has one
    hard_guessed: bool = False  # then: whether --eviction-hard is a default that may not be the kubelet's
    cgroup_root: str = ""  # the kubelet's ``cgroupRoot``, below which its kubepods is believed to be
    #: The table `services:`, pattern -> ``priority``, ``request`` (bytes), ``never``; the first that fits counts.
    services: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    enforce: bool = False  # not mode observe
    hold: bool = False  # mode hold; with ``enforce``
    hold_limit_ns: int = 120_000_000_000  # a hold is over after this
    two_steps: bool = False  # in mode hold: a kubelet evicts at the same line; filled in at start
    hard_grace_ns: int = 0  # mode enforce: between SIGTERM and SIGKILL at a hard threshold; 0: SIGKILL at once
    evict_by: str = "kill"  # or ``api``: under ``enforce`` by pods/eviction, without signals
    node_taints: str = "none"  # or ``own``: outrace.io/memory-pressure:NoSchedule and so on, while a condition holds
    trigger: str = "user"  # or ``kernel``: under ``enforce`` inside the victim's own charge where it can
    hooks: str = "auto"
    listen_host: str = "127.0.0.1"
    listen_port: int = 9469
    expose_metrics: bool = False  # /metrics and /stats/summary for other hosts too
    state_dir: str = STATE_DIR
    run_dir: str = "/run/outrace"  # of the socket on which commands ask the daemon; filled in at start
    log_format: str = "logfmt"
    record: str = ""  # file that every input is recorded in, for `outrace replay`
    alertmanagers: tuple[str, ...] = ()  # base URLs

    #: The release whose policy decides (`monitor.policy.releases`), and which of two answers where it is plainly wrong
    #: (`monitor.policy.compat`): another one than the default only in a recording of an earlier release, and in tests.
    policy: str = CURRENT_POLICY
    compat: str = SANE

    #: The maps as they were written, for commands and recordings that show them.
    eviction_hard: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_HARD))
    eviction_soft: Mapping[str, str] = field(default_factory=dict)
    eviction_soft_grace_period: Mapping[str, str] = field(default_factory=dict)
    eviction_minimum_reclaim: Mapping[str, str] = field(default_factory=dict)
    #: Longest grace a soft eviction grants, in seconds. Negative leaves it to the pod's own grace, as the kubelet's
    #: documentation promises; with compat kubelet-1.36 it kills at once, as its code does (Kubernetes issue 118172).
    eviction_max_pod_grace_period_s: int = 0
    eviction_pressure_transition_period_ns: int = DEFAULT_TRANSITION_PERIOD_NS
    #: Rules of stalls, as they were written (`monitor.policy.stall.parse_rule`).
    stall: tuple[str, ...] = ("pod>50%,grace=10s",)
    enforce_node_allocatable: tuple[str, ...] = ("pods",)
    #: Memory kept back from pods. The capacity of kubepods is capacity - both where its cgroup has no limit of its own.
    system_reserved: int = 0
    kube_reserved: int = 0
    kernel_memcg_notification: bool = False
    local_storage: bool = True  # `localStorageCapacityIsolation`: evict pods over their own limits

    #: Absolute paths on the file systems of the node and of images; None: found at start.
    nodefs: str | None = None
    imagefs: str | None = None
    #: The command that makes room before pods are evicted for a disk; () if there is none.
    reclaim_images: tuple[str, ...] = ()

    max_fill_rate: int = field(default_factory=fastest_fill)  # bytes a second: how early the programs are armed

    #: How the disks turned out to be laid out (`monitor.policy.layout.DiskLayout`); filled in at start.
    layout_image_fs: bool = False
    #: Bytes that the kernel keeps from processes, which the default threshold is above
    #: (`settings.read.over_the_kernels_share`); filled in at start, 0 where it is not.
    kernels_share: int = 0
    #: The rung of the hook ladder that was taken, and the better ones that could not be: {name, why, remedy} each;
    #: filled in at start.
    rung: str = "memcg-tracepoint"
    missed: tuple[Mapping[str, str], ...] = ()
    #: Directory of the pinned BPF objects, and the inherited descriptors; filled in just before the daemon starts.
    pin_dir: str = ""
    lock_fd: int = -1
    run_lock_fd: int = -1  # -1 without a usable run directory
    pins_fd: int = -1  # holds the instance of pins (`monitor.kernel.instances`)
    listen_fd: int = -1

    #: Where each value came from: field name -> ``--option``, ``FILE: key`` or ``default``.
    origins: Mapping[str, str] = field(default_factory=dict)
    #: What the maps and their origins were made of (`monitor.settings.read`), for `outrace config show`. Not
    #: compared: two configurations with the same values are the same.
    inputs: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def reserved(self) -> int:
        """Bytes reserved for the system and Kubernetes itself."""
        return self.system_reserved + self.kube_reserved

    @property
    def huge_pages_apart(self) -> bool:
        """Whether capacity leaves huge pages out: the machine's, by its release; a cgroup's limit has none."""
        from monitor.policy.releases import era

        return self.node_cgroup is None and era(self.policy).huge_pages_apart

    @property
    def mode(self) -> str:
        """``observe``, ``hold`` or ``enforce``."""
        return HOLD if self.hold else ENFORCE if self.enforce else OBSERVE

    @property
    def kills(self) -> bool:
        """Whether outrace itself signals pods; in mode hold at the kill threshold."""
        return self.enforce and self.evict_by == "kill"

    @property
    def holds(self) -> bool:
        """Whether outrace holds or slows a pod at a crossing before it kills one."""
        return self.hold or self.hard_grace_ns > 0

    @property
    def asks_api(self) -> bool:
        """Whether outrace requests evictions from the API server (``--evict-by api``)."""
        return self.enforce and self.evict_by == "api"

    @property
    def taints_node(self) -> bool:
        """Whether conditions become taints of our own (``--node-taints own``)."""
        return self.node_taints == "own"

    @property
    def kept_fds(self) -> tuple[int, ...]:
        """The descriptors that the daemon keeps over an execv."""
        return tuple(fd for fd in (self.lock_fd, self.run_lock_fd, self.listen_fd, self.pins_fd) if fd >= 0)

    def parse_thresholds(self) -> tuple[Threshold, ...]:
        """The thresholds of the maps, with the copy for allocatable memory. Raises PolicyError."""
        from monitor.policy.releases import era

        maps = (self.eviction_hard, self.eviction_soft, self.eviction_soft_grace_period, self.eviction_minimum_reclaim)
        return era(self.policy).parse_thresholds(*maps, self.enforce_node_allocatable, own=True)

    def thresholds(self) -> tuple[Threshold, ...]:
        """The thresholds in force, of container file systems too where the release has them. PolicyError."""
        from monitor.policy.layout import DiskLayout, overlay_containerfs
        from monitor.policy.releases import era

        found = self.parse_thresholds()
        if era(self.policy).containerfs:
            found = overlay_containerfs(found, DiskLayout(self.layout_image_fs))
        # A killed service leaves its files behind, so outrace kills none for a disk. And there is no kubepods.
        kept = {*OF_DOMAIN["node"], PID} if self.pods == SERVICES else None
        # One without an operator had nothing to copy, and is never met.
        return tuple(t for t in found if t.operator == LESS_THAN and (kept is None or t.signal in kept))

    @property
    def formulas(self) -> int:
        """What the BPF programs compare: 0 if all thresholds are the kubelet's, 1 with `*.reclaimable`. PolicyError."""
        return int(any(threshold.signal in OWN_SIGNALS for threshold in self.thresholds()))

    def pass_config(self, *, kill_at_once: bool = False) -> PassConfig:
        """What the passes of the policy have in common; ``kill_at_once``: those of the daemon. Raises PolicyError."""
        from monitor.policy.eviction_pass import PassConfig  # few processes make passes
        from monitor.policy.layout import DiskLayout
        from monitor.policy.releases import era

        return PassConfig(
            thresholds=self.thresholds(),
            transition_period_ns=self.eviction_pressure_transition_period_ns,
            max_pod_grace_s=self.eviction_max_pod_grace_period_s,
            layout=DiskLayout(self.layout_image_fs),
            local_storage=self.local_storage,
            compat=self.compat,
            era=era(self.policy),
            kill_at_once=kill_at_once,
            hard_grace_s=self.hard_grace_ns // 1_000_000_000,
        )

    def to_json(self) -> str:
        """One line of JSON from which `from_json` makes an equal value."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps(values, separators=(",", ":"))

    def has_own_line(self, found: bool) -> bool:
        """Whether the hard thresholds are others than the kubelet's, whose line holds stay above. One that was not
        ``found`` by its files has what --kubelet-config says, or the defaults.
        """
        if found:
            return any("evictionHard" in line for line in self.kubelet_differs)
        origin = self.origins.get("eviction_hard", "default")
        return origin != "default" and not origin.endswith("evictionHard")

    @classmethod
    def from_json(cls, text: str | bytes) -> RunConfig:
        """The value `to_json` wrote. Raises ValueError for anything else."""
        values: Any = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("a run configuration is a JSON object")
        known = {f.name: f.default for f in fields(cls)}
        unknown = values.keys() - known
        if unknown:
            raise ValueError(f"unknown keys in a run configuration: {', '.join(sorted(unknown))}")
        for name in values:
            if isinstance(known[name], tuple):  # JSON has only lists
                values[name] = tuple(values[name])
        return cls(**values)

    def to_memfd(self) -> int:
        """A new inheritable descriptor holding the JSON."""
        fd = os.memfd_create("outrace-config", 0)
        with open(fd, "wb", closefd=False) as file:
            file.write(self.to_json().encode())
        return fd

    @classmethod
    def from_fd(cls, fd: int) -> RunConfig:
        """Read the JSON of an inherited descriptor; it stays usable for another reader."""
        return cls.from_json(os.pread(fd, os.fstat(fd).st_size, 0))

"""What `outrace run` was told, checked and complete: one frozen value handed to the hot process and the side.

It crosses an `execv` as JSON in a memfd (``OUTRACE_CONFIG_FD``), so both processes see exactly what was checked, also
when a file has changed since. Reading flags and files is `monitor.daemon.settings`; this module stays small because
the hot process imports it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from monitor.policy.thresholds import (
    DEFAULT_TRANSITION_PERIOD_NS,
    Threshold,
    effective_hard,
    parse_thresholds,
)

if TYPE_CHECKING:
    from monitor.policy.synchronize import EvictionConfig

#: Environment variable with the number of the inherited descriptor that holds the JSON.
CONFIG_FD = "OUTRACE_CONFIG_FD"
CHANNEL_FD = "OUTRACE_CHANNEL_FD"
STATS_FD = "OUTRACE_STATS_FD"
#: Pid of a side process already started, and the descriptor of the hot end of its channel.
SIDE = "OUTRACE_SIDE"

TRIGGERS = ("user", "kernel")
HOOKS = ("auto", "memcg-tracepoint")
LOG_FORMATS = ("logfmt", "json")


def _default_hard() -> Mapping[str, str]:
    return effective_hard(None)


def fastest_fill() -> int:
    """Bytes per second that this machine can fault in at most, with room to spare.

    A CPU that clears huge pages hands out 5.1 GiB/s (measured: 5.8 alone, 10.2 on two); 96 GiB/s is more than
    the memory of any one socket writes.
    """
    return min(6 * (os.cpu_count() or 1), 96) << 30


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything `outrace run` needs to know. Sizes are bytes, times say their unit."""

    #: Absolute directory of the cgroup treated as the node (its limit is the capacity), or None for the whole machine.
    node_cgroup: str | None = None
    #: Where pods come from: ``cgroups`` or ``manifests:DIR`` (DIR absolute).
    pods: str = "cgroups"
    enforce: bool = False
    #: Who pulls the trigger under ``enforce``: ``user``, or ``kernel`` inside the victim's own charge where it can.
    trigger: str = "user"
    hooks: str = "auto"
    listen_host: str = "127.0.0.1"
    listen_port: int = 9469
    state_dir: str = "/var/lib/outrace"
    log_format: str = "logfmt"

    eviction_hard: Mapping[str, str] = field(default_factory=_default_hard)
    eviction_soft: Mapping[str, str] = field(default_factory=dict)
    eviction_soft_grace_period: Mapping[str, str] = field(default_factory=dict)
    eviction_minimum_reclaim: Mapping[str, str] = field(default_factory=dict)
    #: Longest grace a soft eviction grants, in seconds. Negative means "at once", as in Kubernetes 1.36.
    eviction_max_pod_grace_period_s: int = 0
    eviction_pressure_transition_period_ns: int = DEFAULT_TRANSITION_PERIOD_NS
    enforce_node_allocatable: tuple[str, ...] = ("pods",)
    #: Memory kept back from pods. The capacity of kubepods is capacity - both where its cgroup has no limit of its own.
    system_reserved: int = 0
    kube_reserved: int = 0
    kernel_memcg_notification: bool = False

    #: Bytes per second the machine can fault in at most: how early the fine-grained program is armed.
    max_fill_rate: int = field(default_factory=fastest_fill)
    #: Bytes a pod moves before it is ranked anew.
    step: int = 1 << 20

    #: Directory of the pinned BPF objects, and the inherited descriptors; filled in just before the daemon starts.
    pin_dir: str = ""
    lock_fd: int = -1
    listen_fd: int = -1

    #: Where each value came from: field name -> ``--option``, ``FILE: key`` or ``default``.
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        """Bytes reserved for the system and Kubernetes itself."""
        return self.system_reserved + self.kube_reserved

    @property
    def mode(self) -> str:
        """``enforce`` or ``observe``."""
        return "enforce" if self.enforce else "observe"

    def thresholds(self) -> tuple[Threshold, ...]:
        """The eviction thresholds in force, with the copy for allocatable memory. Raises PolicyError."""
        return parse_thresholds(
            self.eviction_hard,
            self.eviction_soft,
            self.eviction_soft_grace_period,
            self.eviction_minimum_reclaim,
            self.enforce_node_allocatable,
        )

    def eviction_config(self) -> EvictionConfig:
        """What `monitor.policy.synchronize` needs. Raises PolicyError."""
        from monitor.policy.synchronize import EvictionConfig  # only the hot process makes passes

        return EvictionConfig(
            thresholds=self.thresholds(),
            transition_period_ns=self.eviction_pressure_transition_period_ns,
            max_pod_grace_s=self.eviction_max_pod_grace_period_s,
        )

    def to_json(self) -> str:
        """One line of JSON from which `from_json` makes an equal value."""
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> RunConfig:
        """The value `to_json` wrote. Raises ValueError for anything else."""
        values: Any = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("a run configuration is a JSON object")
        unknown = values.keys() - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"unknown keys in a run configuration: {', '.join(sorted(unknown))}")
        if "enforce_node_allocatable" in values:
            values["enforce_node_allocatable"] = tuple(values["enforce_node_allocatable"])
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

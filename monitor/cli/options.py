"""The options of `outrace run` that make up its configuration, for every command that reads one the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from monitor.kernel.rungs import NAMES
from monitor.policy.compat import CHOICES
from monitor.policy.releases import ERAS
from monitor.policy.translate import BOOLEANS
from monitor.settings.config import LOG_FORMATS

if TYPE_CHECKING:
    from monitor.settings.read import Resolved

F = TypeVar("F", bound=Callable[..., Any])

_KUBELETS_BOOLEANS = ("kernel_memcg_notification", "local_storage_capacity_isolation")


def _kubelets_boolean(name: str, text: str) -> Callable[[F], F]:
    """An option as the kubelet's own flag: alone, or with =true or =false."""
    return click.option(name, is_flag=False, flag_value="true", default=None, metavar="[true|false]", help=text)


_OPTIONS = (
    click.option("--config", metavar="FILE", help="Own configuration, YAML or TOML; keys are the option names."),
    click.option("--kubelet-config", metavar="FILE", help="A KubeletConfiguration, as it is."),
    click.option("--kubelet-config-dir", metavar="DIR", help="Its drop-ins, *.conf, as the kubelet's --config-dir."),
    click.option("--node-cgroup", metavar="PATH", help="Treat this cgroup as the node; its limit is the capacity."),
    click.option("--pods", metavar="SOURCE", help="cgroups (default) or manifests:DIR."),
    click.option("--cgroup-root", metavar="PATH", help="The kubelet's own option: kubepods is below it. [the root]"),
    click.option("--enforce/--no-enforce", default=None, help="Really evict. The default only observes and logs."),
    click.option(
        "--enforce-unknown-specs/--no-enforce-unknown-specs",
        default=None,
        help="Evict although --pods cgroups tells neither priorities nor all critical pods.",
    ),
    click.option(
        "--trigger", metavar="user|kernel", help="Who kills under --enforce: user space, or the BPF program too."
    ),
    click.option("--policy", metavar="|".join(ERAS), help=f"The release whose policy decides. [{ERAS[0]}]"),
    click.option(
        "--compat",
        metavar="|".join(CHOICES),
        help=f"Where that release is plainly wrong: right, or alike. [{CHOICES[0]}]",
    ),
    click.option("--eviction-hard", metavar="MAP", help="For example 'memory.available<100Mi'."),
    click.option("--eviction-soft", metavar="MAP", help="For example 'memory.available<300Mi'."),
    click.option("--eviction-soft-grace-period", metavar="MAP", help="For example 'memory.available=1m30s'."),
    click.option(
        "--eviction-max-pod-grace-period", type=int, metavar="SECONDS", help="Longest grace of a soft eviction."
    ),
    click.option("--eviction-minimum-reclaim", metavar="MAP", help="For example 'memory.available=0Mi'."),
    click.option("--eviction-pressure-transition-period", metavar="DURATION", help="How long a condition stays. [5m]"),
    click.option("--enforce-node-allocatable", metavar="LIST", help="The kubelet's own option. [pods]"),
    click.option("--system-reserved", metavar="MAP", help="For example 'memory=500Mi'."),
    click.option("--kube-reserved", metavar="MAP", help="For example 'memory=500Mi'."),
    _kubelets_boolean("--kernel-memcg-notification", "Accepted; every notification is exact."),
    _kubelets_boolean(
        "--local-storage-capacity-isolation", "Evict pods over their own limits of local storage. [true]"
    ),
    click.option("--nodefs", metavar="PATH", help="On the file system of the node. [found at start]"),
    click.option("--imagefs", metavar="PATH", help="On the one that holds images. [found at start]"),
    click.option("--containerfs", metavar="PATH", help="On the one that holds writable layers. [that of images]"),
    click.option("--reclaim-containers", metavar="COMMAND", help="Removes dead containers, before pods are evicted."),
    click.option(
        "--reclaim-images", metavar="COMMAND", help="Removes unused images: 'crictl rmi --prune'. [nothing is]"
    ),
    click.option(
        "--hooks", metavar="NAME", help=f"How to learn of memory: auto (the best there is), {', '.join(NAMES)}. [auto]"
    ),
    click.option(
        "--max-fill-rate",
        metavar="BYTES",
        help="How much the machine can fault in per second. [6Gi for each CPU, at most 96Gi]",
    ),
    click.option("--step", metavar="BYTES", help="How far a pod moves before it is ranked anew. [1Mi]"),
    click.option("--listen", metavar="HOST:PORT", help="Where /metrics and the rest are served. [127.0.0.1:9469]"),
    click.option("--record", metavar="FILE", help="Record every input there, for outrace replay."),
    click.option("--alertmanager", multiple=True, metavar="URL", help="Push alerts there; may be given several times."),
    click.option("--webhook", multiple=True, metavar="URL", help="POST every alert there; may be given several times."),
    click.option(
        "--state-dir", metavar="DIR", help="Where statuses of evicted pods and the lock live. [/var/lib/outrace]"
    ),
    click.option("--log-format", metavar="|".join(LOG_FORMATS), help="How log lines look. [logfmt]"),
)


def configuration_options(command: F) -> F:
    """Give a click command every option of the configuration; all arrive as keyword arguments, for `resolve`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def resolve(options: Mapping[str, Any]) -> Resolved:
    """The configuration these options make, and what it was made of. Raises ConfigError.

    ``options`` by parameter name, as click passes them (``eviction_hard``); None means not given.
    """
    from monitor.settings.read import read

    flags = {name.replace("_", "-"): value for name, value in options.items()}
    for name in _KUBELETS_BOOLEANS:
        text = options.get(name)
        flags[name.replace("_", "-")] = BOOLEANS.get(text, text) if isinstance(text, str) else text
    for name in ("alertmanager", "webhook"):
        flags[name] = flags.get(name) or None
    files = (flags.pop(name, None) for name in ("config", "kubelet-config", "kubelet-config-dir"))
    return read(flags, *files)

"""`outrace run`: check everything that can be checked, then become the daemon.

The order matters: what the user can mend (a typing mistake, a missing privilege) is said before anything is touched,
and nothing that compiles or attaches starts before this daemon is known to be the only one on its state directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import click

from monitor.daemon.config import CONFIG_FD, LOG_FORMATS, RunConfig
from monitor.daemon.stats import SharedStats
from monitor.daemon.supervise import Side
from monitor.errors import CannotError, MonitorError
from monitor.report.log import Log

#: Backlog of the listening socket: more than one scraper is rare, a storm of them must not fill it.
_BACKLOG = 64
#: What the kubelet's flags take for a boolean (Go's strconv.ParseBool).
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


@click.command()
@click.option("--config", metavar="FILE", help="Own configuration, YAML or TOML; keys are the option names.")
@click.option("--kubelet-config", metavar="FILE", help="A KubeletConfiguration, as it is.")
@click.option("--node-cgroup", metavar="PATH", help="Treat this cgroup as the node; its limit is the capacity.")
@click.option("--pods", metavar="SOURCE", help="cgroups (default) or manifests:DIR.")
@click.option("--enforce/--no-enforce", default=None, help="Really evict. The default only observes and logs.")
@click.option("--trigger", metavar="user|kernel", help="Who kills under --enforce: user space, or the BPF program too.")
@click.option("--eviction-hard", metavar="MAP", help="For example 'memory.available<100Mi'.")
@click.option("--eviction-soft", metavar="MAP", help="For example 'memory.available<300Mi'.")
@click.option("--eviction-soft-grace-period", metavar="MAP", help="For example 'memory.available=1m30s'.")
@click.option("--eviction-max-pod-grace-period", type=int, metavar="SECONDS", help="Longest grace of a soft eviction.")
@click.option("--eviction-minimum-reclaim", metavar="MAP", help="For example 'memory.available=0Mi'.")
@click.option("--eviction-pressure-transition-period", metavar="DURATION", help="How long a condition stays. [5m]")
@click.option("--enforce-node-allocatable", metavar="LIST", help="The kubelet's own option. [pods]")
@click.option("--system-reserved", metavar="MAP", help="For example 'memory=500Mi'.")
@click.option("--kube-reserved", metavar="MAP", help="For example 'memory=500Mi'.")
@click.option(  # --kernel-memcg-notification alone, or with =true or =false, as the kubelet's own flag
    "--kernel-memcg-notification",
    is_flag=False,
    flag_value="true",
    default=None,
    metavar="[true|false]",
    help="Accepted; every notification is exact.",
)
@click.option("--hooks", metavar="NAME", help="Where to listen in the kernel: auto (default) or memcg-tracepoint.")
@click.option(
    "--max-fill-rate",
    metavar="BYTES",
    help="How much the machine can fault in per second. [6Gi for each CPU, at most 96Gi]",
)
@click.option("--step", metavar="BYTES", help="How far a pod moves before it is ranked anew. [1Mi]")
@click.option("--listen", metavar="HOST:PORT", help="Where /metrics and the rest are served. [127.0.0.1:9469]")
@click.option("--record", metavar="FILE", help="Write a recording for outrace replay (not in this version).")
@click.option("--state-dir", metavar="DIR", help="Where statuses of evicted pods and the lock live. [/var/lib/outrace]")
@click.option("--log-format", metavar="|".join(LOG_FORMATS), help="How log lines look. [logfmt]")
def run(config: str | None, kubelet_config: str | None, **flags: Any) -> None:
    """Run the monitor: observe by default, evict with --enforce."""
    from monitor.daemon.settings import build

    notification = flags["kernel_memcg_notification"]
    flags["kernel_memcg_notification"] = _BOOLEANS.get(notification, notification)
    settings = build({name.replace("_", "-"): value for name, value in flags.items()}, config, kubelet_config)
    start(settings)


def start(config: RunConfig) -> NoReturn:
    """Take what the daemon needs and become it. Raises MonitorError with one line and its exit code."""
    if os.geteuid() != 0:
        raise CannotError("outrace run must be root", "use sudo")
    config = _with_node(config)
    lock_fd = lock(Path(config.state_dir))
    listener = bind(config.listen_host, config.listen_port)
    from monitor.kernel import loader, mounts

    mounts.ensure()
    pin_dir, loaded = loader.ensure_loaded(Path(config.state_dir))
    host, port = listener.getsockname()[:2]
    config = dataclasses.replace(
        config,
        pin_dir=str(pin_dir),
        lock_fd=lock_fd,
        listen_fd=listener.detach(),
        listen_host=host,
        listen_port=port,
    )
    _announce(config, loaded)
    # -P keeps the working directory off the module path, so nothing lying there is imported as root; the package's own
    # parent is named instead. argv[0] is the full path, because from it Python finds its virtual environment.
    os.environ["PYTHONPATH"] = loader.package_path()
    config_fd = config.to_memfd()
    # The side takes as long to start as the hot process and is needed to be ready: started now, it does so meanwhile.
    side = Side(config_fd, SharedStats.create().fd, config.listen_fd)
    side.start(time.monotonic_ns())
    side.hand_over()
    for fd in (config_fd, config.lock_fd, config.listen_fd):
        os.set_inheritable(fd, True)
    os.environ[CONFIG_FD] = str(config_fd)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "monitor.daemon.hot"])


def _with_node(config: RunConfig) -> RunConfig:
    """The configuration with the node's cgroup as an absolute directory, checked to exist."""
    from monitor.kernel import cgroupfs

    hierarchy = cgroupfs.detect()
    if config.node_cgroup is None:
        return config
    return dataclasses.replace(config, node_cgroup=str(cgroupfs.resolve(hierarchy, config.node_cgroup)))


def lock(state_dir: Path) -> int:
    """Make the state directory and take its lock; returns the descriptor that holds it.

    Raises MonitorError naming the daemon that has it already, or what is wrong with the directory. One that others may
    write in is refused: what they put there would be written to as root.
    """
    remedy = "name another directory with --state-dir"
    try:
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _check_owner(state_dir, os.fstat(directory))
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open("lock", flags, 0o640, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError as error:
        if error.errno == errno.ELOOP and error.filename == "lock":
            raise MonitorError(f"{state_dir / 'lock'} is a symbolic link", f"remove it, or {remedy}") from None
        raise MonitorError(f"state directory {state_dir}: {error.strerror}", remedy) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise MonitorError(
            f"another outrace (pid {owner}) is running on state directory {state_dir}", f"stop it, or {remedy}"
        ) from None
    except OSError as error:
        os.close(fd)
        raise MonitorError(f"state directory {state_dir} cannot be locked: {error.strerror}", remedy) from None
    # The pid only names the owner in the message above. A full disk must not keep the monitor from starting.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _check_owner(state_dir: Path, status: os.stat_result) -> None:
    """Raises MonitorError if anybody else may write in the state directory."""
    other = "or name another directory with --state-dir"
    if status.st_uid != os.geteuid():
        me = os.geteuid()
        raise MonitorError(
            f"state directory {state_dir} belongs to user {status.st_uid}, not to {me}",
            f"chown {me} {state_dir}, {other}",
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise MonitorError(
            f"state directory {state_dir} (mode {stat.S_IMODE(status.st_mode):o}) can be written by others",
            f"chmod go-w {state_dir}, {other}",
        )


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises MonitorError if the address cannot be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise MonitorError(f"--listen {host}:{port}: {error.strerror}", "name an address of this machine") from None
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise MonitorError(
            f"--listen {host}:{port}: {error.strerror}", "stop what has it, or name another with --listen HOST:PORT"
        ) from None
    return listener


def _announce(config: RunConfig, loaded: bool) -> None:
    """Say how this daemon was told to behave, and what was accepted without needing it."""
    log = Log(config.log_format)
    given = {name: origin for name, origin in config.origins.items() if origin != "default"}
    log.info(
        "starting",
        mode=config.mode,
        trigger=config.trigger,
        node=config.node_cgroup or "machine",
        pods=config.pods,
        listen=f"{config.listen_host}:{config.listen_port}",
        state_dir=config.state_dir,
        bpf="loaded" if loaded else "found pinned",
        given=given,
    )
    if config.kernel_memcg_notification:
        log.info(
            "kernel-memcg-notification is accepted and changes nothing: every threshold is compared in the kernel "
            "already, byte by byte, on cgroup v1 and v2",
            origin=config.origins["kernel_memcg_notification"],
        )
    if config.trigger == "kernel" and not config.enforce:
        log.warning("trigger kernel has no effect without --enforce: observing kills nothing")
    if not any(threshold.signal.endswith("emory.available") for threshold in config.thresholds()):
        log.warning(
            "no memory threshold is configured: nothing will be decided", origin=config.origins["eviction_hard"]
        )

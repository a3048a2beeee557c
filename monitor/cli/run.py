"""`outrace run`: check everything that can be checked, then become the daemon.

The order matters: what the user can mend (a typing mistake, a missing privilege) comes before anything is touched,
and nothing that compiles or attaches starts before this daemon is known to be the only one on its state directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from monitor.actions.ledger import RELAX, ROLES
from monitor.actions.undo import undo_left
from monitor.cli.hooks import joined, take
from monitor.cli.options import configuration_options, kernels_share, resolve, with_default_threshold, with_disks
from monitor.errors import CannotError, InUseError, MonitorError
from monitor.hold.pod_brake import panics_at_cap
from monitor.hot.sd_notify import Service
from monitor.hot.supervise import Side
from monitor.kernel.charging import BPF_RUNGS
from monitor.kernel.mounts import join_machine_cgroups
from monitor.kernel.sched import refuses_realtime
from monitor.link.counters import SharedStats
from monitor.link.daemon_socket import opened, run_dir
from monitor.owner import ChangeableError, check_alone, distrust_file, mend
from monitor.policy.signals import MEMORY_SIGNALS
from monitor.settings.config import CONFIG_FD, ENFORCE, RunConfig
from monitor.side.export.log import Log

if TYPE_CHECKING:
    from monitor.pods.spec import Choice

T = TypeVar("T")

#: The side of a daemon that was killed lets go of it within this time, seconds.
PATIENCE_S = 5.0
#: Less than `TimeoutStartSec=` of the unit by what compiling the programs takes on a very slow machine.
LOCK_PATIENCE_S = 60.0
_LOOK_S = 0.5

#: Backlog of the listening socket: more than one scraper is rare, a storm of clients must not fill it before the side
#: has its turn (a probe would try again after a second).
_BACKLOG = 1024


class _Run(click.Command):
    """Undoes what a killed daemon left also where its options are wrong."""

    def make_context(self, *args: Any, **rest: Any) -> click.Context:
        try:
            return super().make_context(*args, **rest)
        except click.ClickException:
            _undo_left(None, locked=False)
            raise


@click.command(cls=_Run)
@configuration_options
def run(**options: Any) -> None:
    """Run the monitor: observe by default, evict with --enforce."""
    state_dir, locks = None, list[int]()
    try:
        signal.signal(signal.SIGTERM, _end)  # an execv sets it back
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # until the hot process has its handler
        config = resolve(options).config
        state_dir = Path(config.state_dir)
        start(config, locks)
    except BaseException:  # a signal and a defect too
        _undo_left(state_dir, bool(locks))
        raise


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _undo_left(state_dir: Path | None, locked: bool) -> None:
    """A start that fails takes nothing over, and the next may be far. ``state_dir``: None if it is not known."""
    from monitor.cli.unload import known_state_dirs, stopped

    if os.geteuid() != 0:
        return
    ended = list[Path]()
    try:
        if state_dir is None:
            ended = stopped(known_state_dirs())
        elif locked or (state_dir.is_dir() and lock(state_dir)):
            ended = [state_dir]
    except InUseError:
        return  # what is changed is the other daemon's
    except (MonitorError, OSError):
        pass  # what processes changed that are known to be dead is undone without
    undo_left(ended, Log())


def start(config: RunConfig, locks: list[int]) -> NoReturn:
    """Take what the daemon needs and become it; ``locks`` gets the state dir's lock. Raises MonitorError."""
    from monitor.kernel import cgroupfs
    from monitor.settings.read import check_enforced, check_kernel

    if os.geteuid() != 0:
        check_enforced(config)
        raise CannotError("outrace run must be root", "use sudo")
    join_machine_cgroups()
    check_kernel(config, cgroupfs.detect().version)
    config, choice = _with_pods(config)
    check_enforced(config, choice)
    share = kernels_share(config)
    if config.node_cgroup is not None:
        config = dataclasses.replace(config, node_cgroup=str(cgroupfs.resolve(cgroupfs.detect(), config.node_cgroup)))
    config, disks = with_disks(config)
    config = dataclasses.replace(config, nodefs=str(disks.nodefs), imagefs=str(disks.imagefs), run_dir=run_dir())
    log = Log(config.log_format)
    lock_fd = in_turn(lambda: lock(Path(config.state_dir)), log)
    locks.append(lock_fd)
    run_lock_fd = in_turn(lambda: lock_machine(Path(config.run_dir)), log)
    listener = bind_or_other(config.listen_host, config.listen_port, log)
    config, loaded = take(config)
    # Pages of a large process that is going are on no list for a moment: the smaller one of two looks counts.
    config = with_default_threshold(config, share)
    config = with_trigger(config, refuses_realtime)
    host, port = address_of(listener)
    listen_fd = listener.detach()
    config = dataclasses.replace(
        config, lock_fd=lock_fd, run_lock_fd=run_lock_fd, listen_fd=listen_fd, listen_host=host, listen_port=port
    )
    _announce(config, choice, loaded)
    warn_of_code((sys.executable, __file__), log)
    if not config.holds:  # else the hot process takes them over (`monitor.hold.control`)
        # The helper puts memory.high back, which may reclaim for seconds.
        undo_left([Path(config.state_dir)], log, roles=[role for role in ROLES if role != RELAX])
    _become(config)


def _become(config: RunConfig) -> NoReturn:
    """Start the helper process, and become the hot one."""
    from monitor.kernel import loader, python

    # argv[0] is the full path, because from it Python finds its virtual environment.
    os.environ["PYTHONPATH"] = loader.package_path()
    config_fd = config.to_memfd()
    # The side takes as long to start as the hot process and is needed to be ready: started now, it does so meanwhile.
    side = Side(config_fd, SharedStats.create().fd, config.listen_fd)
    side.start(time.monotonic_ns())
    side.hand_over()
    for fd in (config_fd, *config.kept_fds):
        os.set_inheritable(fd, True)
    os.environ[CONFIG_FD] = str(config_fd)
    # Python takes text as UTF-8 in this locale (PEP 540), and no locale's table of characters is mapped and locked:
    # 0.35 MB in each process.
    os.environ["LC_ALL"] = "C"
    os.execv(sys.executable, python.command("monitor.hot.main"))


def _with_pods(config: RunConfig) -> tuple[RunConfig, Choice]:
    """The configuration with the source of pods that ``auto`` is here, and how it is reached. Raises ConfigError."""
    from monitor.pods.source import settle

    choice, access = settle(config)
    config = dataclasses.replace(config, pods=choice.spec)
    if access is None:
        return config, choice
    # Also while observing: what is tried out there is what will be enforced, and is not to be refused only then.
    if config.evict_by == "api" or config.taints_node:
        access.api_server()  # whose rights and reach are not known yet; a name and credentials there have to be
    found = access.settled()
    if config.hold and not config.asks_api:
        found["two_steps"] = not config.has_own_line(access.kubelet.is_there)
    return dataclasses.replace(config, **found), choice


# What only one process can have, and a service waits for: the lock of a state directory, the socket of `--listen`.


def in_turn(
    take: Callable[[], T],
    log: Log,
    patience_s: float = LOCK_PATIENCE_S,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """What ``take`` takes, when the other process has let go of it. Raises InUseError where it does not in time.

    On a terminal the command fails at once. systemd starts a service that ends again after 1 s, for ever: after a crash
    the node is not watched meanwhile, so `RestartSec=` cannot be longer, and a start a second fills the journal. So a
    service waits here, with one line, and starts as soon as it can.
    """
    service = Service()
    try:
        until, told = now() + patience_s, False
        while True:
            try:
                return take()
            except InUseError as error:
                if not service.is_there or now() >= until:
                    raise
                if not told:
                    log.warning("waiting for what another process has", problem=str(error), at_most_s=patience_s)
                    service.send(f"STATUS=waiting: {error.message}")
                told = True
            sleep(_LOOK_S)
    finally:
        service.close()


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises MonitorError if the address cannot be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:  # a part of a host's name has at most 63 characters
        why = error.strerror if isinstance(error, socket.gaierror) else "not the name of a host"
        raise MonitorError(f"--listen {host}:{port}: {why}", "name an address of this machine") from None
    family, *_, address = found[0]
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # [::] answers IPv4 too
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raised = InUseError if error.errno == errno.EADDRINUSE else MonitorError
        remedy = f"stop what has it (ss -tlnp 'sport = {port}'), or name another with --listen HOST:PORT"
        raise raised(f"--listen {host}:{port}: {os.strerror(error.errno or 0)}", remedy) from None


def bind_or_other(host: str, port: int, log: Log, patience_s: float = PATIENCE_S) -> socket.socket:
    """The same; where another process has that port and keeps it, a port that the kernel chooses, and a unix socket
    without a name in the file system where users hold all of those (28,232 by default). Any user may listen before the
    daemon does: that must not leave the node unwatched.
    """
    try:
        return in_turn(lambda: bind(host, port), log, patience_s)
    except InUseError as error:
        problem = {"problem": error.message, "remedy": error.remedy}
        try:
            listener = bind(host, 0)
        except InUseError:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind("")
            listener.listen(_BACKLOG)
        log.error("served on another port", **problem, listen="{}:{}".format(*address_of(listener)))
        return listener


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Host and port of a listening socket; ("nowhere", 0) of a unix socket."""
    if listener.family == socket.AF_UNIX:
        return "nowhere", 0
    host, port = listener.getsockname()[:2]
    return str(host), int(port)


def lock(state_dir: Path) -> int:
    """Make the state directory and take its lock; returns the descriptor that holds it.

    Raises MonitorError naming the daemon that has it already, or what is wrong with the directory. One that others may
    write in, or replace, is refused: what they put there would be believed, and written to as root.
    """
    return _lock(state_dir, "lock", "state directory", 0o750, "name another directory with --state-dir")


def lock_machine(directory: Path) -> int:
    """The same for the run directory: two daemons on a machine would both evict. -1 where it is of no use: the daemon
    then has no socket either, and its side logs why. Raises InUseError.
    """
    try:
        return _lock(directory, "daemon.lock", "run directory", 0o700, "set OUTRACE_RUN_DIR for a daemon of a lab")
    except InUseError:
        raise
    except MonitorError:
        return -1


def _lock(path: Path, name: str, what: str, mode: int, remedy: str) -> int:
    try:
        check_alone(path)
        path.mkdir(mode=mode, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with opened(path) as directory:
            fd = os.open(name, flags, 0o640, dir_fd=directory)
    except ChangeableError as error:
        raise MonitorError(f"{what} {error.problem}", f"{mend(error.problem)}, or {remedy}") from None
    except OSError as error:
        if error.errno == errno.ELOOP and error.filename == name:
            raise MonitorError(f"{path / name} is a symbolic link", f"remove it, or {remedy}") from None
        raise MonitorError(f"{what} {path}: {error.strerror}", remedy) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise InUseError(
            f"another outrace (pid {owner}) is running on {what} {path}", f"stop it, or {remedy}"
        ) from None
    except OSError as error:
        os.close(fd)
        raise MonitorError(f"{what} {path} cannot be locked: {error.strerror}", remedy) from None
    # For the message above, and for the helper of the daemon before (`LeftChanges`). In the place of the last one, for
    # which a full disk has room too; it must not keep the monitor from starting.
    with contextlib.suppress(OSError):
        os.pwrite(fd, f"{os.getpid():<15}\n".encode(), 0)
    return fd


def warn_of_code(files: Sequence[str], log: Log) -> None:
    """Root that runs a checkout in a user's home is that user; so is a helper that starts again months later."""
    for problem in dict.fromkeys(distrust_file(Path(path)) for path in files):
        if problem:
            log.warning("another user can change the code that root runs", problem=problem)


def with_trigger(config: RunConfig, refuses_realtime: Callable[[], bool]) -> RunConfig:
    """Let the program in the kernel kill too where the hot process gets no SCHED_FIFO, as in a container on a kernel
    with CONFIG_RT_GROUP_SCHED: there it wakes up late on busy CPUs. Not where `--trigger` is given.
    """
    is_free = config.origins.get("trigger", "default") == "default"
    can = config.mode == ENFORCE and config.kills and not config.hard_grace_ns and config.rung in BPF_RUNGS
    if is_free and can and refuses_realtime():
        origins = {**config.origins, "trigger": "default where SCHED_FIFO is refused"}
        return dataclasses.replace(config, trigger="kernel", origins=origins)
    return config


def _announce(config: RunConfig, choice: Choice, loaded: bool) -> None:
    log = Log(config.log_format)
    given = {name: origin for name, origin in config.origins.items() if not origin.startswith("default")}
    log.info(
        "starting",
        mode=config.mode,
        trigger=config.trigger,
        node=config.node_cgroup or "machine",
        pods=config.pods,
        because=choice.why,
        listen=f"{config.listen_host}:{config.listen_port}",
        state_dir=config.state_dir,
        hooks=config.rung,
        bpf=("loaded" if loaded else "found pinned") if config.rung in BPF_RUNGS else "none",
        given=given,
    )
    for line in choice.tried:
        log.warning("no pods from this source", problem=line)
    for line in config.kubelet_differs:
        log.warning("an option differs from the kubelet's own setting", difference=line)
    if asked := config.origins.get("policy", "").partition("default; ")[2]:
        what = "the kubelet's release is not known: outrace assumes the newest; --policy names another"
        log.info(what, policy=config.policy, asked=asked)
    if config.missed:
        log_line = log.info if config.rung in BPF_RUNGS else log.warning
        log_line("better hooks cannot be used here", hooks=config.rung, **joined(config.missed))
    if config.kernel_memcg_notification:
        log.info(
            "kernel-memcg-notification is accepted and changes nothing: every threshold is compared in the kernel "
            "already, byte by byte, on cgroup v1 and v2",
            origin=config.origins["kernel_memcg_notification"],
        )
    for text in _surprises(config):
        log.warning(text)


def _surprises(config: RunConfig) -> Iterator[str]:
    """What has another effect than one may expect, or none."""
    from monitor.kernel import cgroupfs

    if config.kubelet_unread:
        yield (
            f"the kubelet's configuration cannot be read ({config.kubelet_unread}): what is not given here has its "
            "default, which may not be the kubelet's: give --kubelet-config FILE, or the right to get nodes/configz"
        )
    if config.trigger == "kernel" and not config.kills:
        yield "trigger kernel has no effect without --enforce, or with --evict-by api"
    if config.asks_api:
        yield (
            "the API server evicts pods, and outrace kills none: an eviction takes until the kubelet sees it, so the "
            "OOM killer may come first"
        )
    if config.holds and panics_at_cap(cgroupfs.detect().version):
        yield (
            "no pod is held, because an OOM kill at its cap could panic the machine (vm.panic_on_oom=2); set "
            "vm.panic_on_oom to 0"
        )
    thresholds = config.thresholds()
    if not any(threshold.signal in MEMORY_SIGNALS for threshold in thresholds):
        what = "for memory" if thresholds else "at all, but for pods over limits of their own"
        yield f"no memory threshold is configured ({config.origins['eviction_hard']}): nothing is decided {what}"

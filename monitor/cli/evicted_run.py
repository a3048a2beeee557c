"""`outrace evicted run`: the controller, its log, its /metrics and /healthz."""

from __future__ import annotations

import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.evicted_options import (
    cluster_options,
    criteria_of,
    duration_option,
    rate_option,
    retry_option,
    selection_options,
)
from monitor.errors import ConfigError
from monitor.evicted.controller import Controller
from monitor.evicted.election import LeaderElector, Timing
from monitor.evicted.lease import LeaseLock
from monitor.evicted.selection import Criteria
from monitor.evicted.sweep import Sweep
from monitor.kube.client import ApiClient
from monitor.kube.kubeconfig import find
from monitor.owner import alone
from monitor.settings.values import listen as parse_listen
from monitor.side.export.log import Log

if TYPE_CHECKING:
    from monitor.side.export.http import Server

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@click.command()
@click.option("--lease", required=True, metavar="NAMESPACE/NAME", help="The Lease that decides who deletes.")
@duration_option("--interval", "interval_s", text="Time between two sweeps.", default="5m")
@click.option(
    "--listen", default="", metavar="HOST:PORT", help="Where /metrics, /healthz and /readyz are served. [nowhere]"
)
@selection_options
@click.option("--all", "everything", is_flag=True, help="Instead of a criterion: delete every evicted pod, at once.")
@rate_option
@retry_option
@cluster_options
@duration_option(
    "--leader-elect-lease-duration",
    "lease_duration_s",
    text="How long others wait after the last renewal that they saw.",
    default="15s",
)
@duration_option(
    "--leader-elect-renew-deadline",
    "renew_deadline_s",
    text="How long a leader tries to renew before it stops deleting.",
    default="10s",
)
@duration_option(
    "--leader-elect-retry-period",
    "retry_period_s",
    text="Time between two tries to get or renew the lease.",
    default="2s",
)
def run(
    lease: str,
    interval_s: float,
    listen: str,
    rate: float,
    retry_s: float,
    kubeconfig: str,
    context: str,
    everything: bool,
    **options: Any,
) -> None:
    """Delete evicted pods continuously, now and every --interval, while this process holds the lease.

    Which ones: as for `outrace evicted delete`, but at least one criterion or --all has to be given: there is no dry
    run. SIGTERM ends it and releases the lease.
    """
    namespace, slash, name = lease.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise ConfigError(f"--lease: {lease!r} is not NAMESPACE/NAME")
    timing = Timing(*(options.pop(key) for key in ("lease_duration_s", "renew_deadline_s", "retry_period_s")))
    timing.check()
    if interval_s < 1:
        raise ConfigError("--interval: must be at least 1s")
    criteria = criteria_of(options)
    if not everything and criteria == Criteria():
        raise ConfigError(
            "no criterion is given: every evicted pod of the cluster would be deleted, at once",
            "give one, such as --older-than 24h, or --all",
        )
    if everything and criteria != Criteria():
        raise ConfigError("--all: stands beside a criterion, which would keep some", "give one of them")
    config = find(kubeconfig, context, distrust=alone())
    log, stop, identity = Log(), threading.Event(), f"{socket.gethostname()}_{uuid.uuid4()}"
    # The lease's own client goes on when all else is asked to stop: the lease is released last. Half of the deadline,
    # as in kube-controller-manager: a request that hangs leaves time for another one.
    lease_client = ApiClient(config, timeout_s=timing.renew_deadline_s / 2)

    def make_sweep(over: threading.Event, may_go_on: Callable[[], bool]) -> Sweep:
        return Sweep(ApiClient(config, over), criteria, over, rate=rate, retry_s=retry_s, may_go_on=may_go_on)

    elector = LeaderElector(
        LeaseLock(lease_client, namespace, name), identity, timing, stop, log_line=log.info, failed=log.warning
    )
    controller = Controller(elector, make_sweep, criteria, interval_s, stop, log_line=log.info, failed=log.warning)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # for all threads: they are waited for below
    server = None
    try:
        server = _serve(listen, controller, log) if listen else None
        log.info("evicted pods are looked for", identity=identity, server=str(config.server), pid=os.getpid())
        _run(controller, stop)
    finally:
        if server is not None:
            server.close()
        lease_client.close()
        while signal.sigpending() & set(_SIGNALS):  # `_run`'s own, sent when all was over already
            signal.sigwait(_SIGNALS)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _run(controller: Controller, stop: threading.Event) -> None:
    """Until a signal, or until the controller has ended by itself.

    An Event must not be set by a handler, which could interrupt the thread that holds its lock. Not sigtimedwait: when
    it is interrupted (SIGCONT) and its time is over, CPython 3.11 returns a signal that there was none of.
    """
    raised: list[BaseException] = []

    def body() -> None:
        try:
            controller.run()
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=body, name="election")
    thread.start()
    signal.sigwait(_SIGNALS)
    stop.set()
    thread.join()
    if raised:
        raise raised[0]


def _serve(listen: str, controller: Controller, log: Log) -> Server:
    from monitor.cli.evicted_metrics import EvictedMetrics
    from monitor.cli.listen import bind
    from monitor.side.export.http import Response, Server, text

    try:
        host, port = parse_listen(listen)
    except ValueError as error:
        raise ConfigError(f"--listen: {error}") from None

    def healthz(_accept: str) -> Response:
        problem = controller.problem()
        return text(503, problem) if problem else text(200, "ok")

    def readyz(_accept: str) -> Response:
        """Ready: the lease has been seen."""
        return text(200, "ok") if controller.elector.leader else text(503, "nobody is known to hold the lease")

    listener = bind(host, port)
    log.info("listening", address="{}:{}".format(*listener.getsockname()[:2]))
    server = Server(
        listener,
        {"/healthz": healthz, "/readyz": readyz},
        lambda problem: log.error("http request failed", problem=problem),
        {"/metrics": EvictedMetrics(controller).render},
    )
    server.start()
    return server

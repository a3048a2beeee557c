"""`outrace doctor`: its checks (`monitor.cli.checks`), and the rung of the hook ladder that follows from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from monitor.cli.checks import Check, examine
from monitor.cli.daemons import Daemon, choose_daemon, no_daemon_option
from monitor.cli.output import emit, format_bytes, output_option, table_lines
from monitor.errors import EXIT_CANNOT, EXIT_OK, MonitorError
from monitor.kernel import bounds, cgroupfs, meminfo, rungs
from monitor.kernel.charging import Offer
from monitor.kernel.pins import TRACEPOINT
from monitor.settings.config import STATE_DIR, fastest_fill

#: What programs need that are pinned already: nothing is compiled or loaded for them.
_EVEN_PINNED = ("CAP_BPF", "CAP_PERFMON", "libbpf")


def _first(failed: list[Check]) -> tuple[str, str]:
    return (f"{failed[0].name}: {failed[0].detail}", failed[0].remedy) if failed else ("", "")


def hook_plan(checks: list[Check], state_dir: Path) -> dict[str, Any]:
    """The hook ladder here: the ``rung`` that `outrace run --hooks auto` would take (None: none), and all ``rungs``."""
    # `outrace run` finds out by loading what the checks know already.
    lacking = [check for check in checks if (check.bpf or check.required) and not check.ok]
    barred = [check for check in lacking if check.required or check.name in _EVEN_PINNED]
    poll = Offer(rungs.POLL, True, "usage and memory.stat, read as often as the headroom asks for")
    offers = [*rungs.bpf_offers(state_dir, lacking=_first(lacking), barred=_first(barred)), poll]
    try:
        cgroupfs.detect()
    except MonitorError as error:
        remedy = "mount a cgroup hierarchy with the memory controller"
        offers = [Offer(offer.name, False, str(error), remedy) for offer in offers]
    able = not any(check.required and not check.ok for check in checks)
    taken = next((offer.name for offer in offers if offer.ok), None) if able else None
    machine = fastest_fill(), os.cpu_count() or 1, meminfo.huge_page()
    return {"rung": taken, "rungs": [_rung(offer, *machine) for offer in offers]}


def _rung(offer: Offer, *machine: int) -> dict[str, Any]:
    """``unseen_bytes`` can move, for ``unseen_ms``, before outrace knows, near a threshold of the machine."""
    promised, detail = rungs.promise(offer.name, *machine), offer.why
    if offer.ok:
        on_a_cgroup = rungs.promise(offer.name, *machine, machine=False).unseen_bytes
        detail += f"; with --node-cgroup {format_bytes(on_a_cgroup)}"
        if offer.name != TRACEPOINT:  # it looks
            detail += f"; more where a look costs more than {bounds.TURN_NS / 1e3:g} us: see outrace_unseen_bytes_bound"
    return {
        "name": offer.name,
        "ok": offer.ok,
        "detail": detail,
        "remedy": "" if offer.ok else offer.remedy,
        "unseen_bytes": promised.unseen_bytes,
        "unseen_ms": promised.unseen_ns / 1e6,
    }


@click.command()
@click.option(
    "--state-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help=f"State directory of the daemon. [the daemon's, or {STATE_DIR}]",
)
@no_daemon_option
@output_option
def doctor(state_dir: Path | None, no_daemon: bool, output: str) -> int:
    """Show what this kernel and these privileges allow, each "no" with its remedy, and the daemon that runs here.

    Hooks are those of `outrace run` with the same state directory, by default the running daemon's. Bounds count near
    a threshold, with the machine as the node.

    Exit code 0 if the monitor can run here, 3 if it cannot.
    """
    daemon = None
    try:
        daemon = choose_daemon(("state_dir",), no_daemon, "")
    except MonitorError as error:
        click.echo(f"outrace: {error}", err=True)  # not root, which the checks report with its consequences
    if state_dir is None:
        state_dir = Path(daemon.config.state_dir if daemon is not None else STATE_DIR)
    checks = examine()
    plan = hook_plan(checks, state_dir)
    fields = ("name", "ok", "detail", "remedy")
    found = {"checks": [{k: getattr(check, k) for k in fields} for check in checks], "hook_plan": plan}
    answer = found if daemon is None else {**found, "daemons": [daemon.to_json()]}
    emit(output, answer, lambda: _lines(checks, plan, daemon))
    return EXIT_OK if plan["rung"] else EXIT_CANNOT


def _lines(checks: Sequence[Check], plan: Mapping[str, Any], daemon: Daemon | None) -> Iterator[str]:
    words = [("ok" if c.ok else "NO" if c.required else "no", c) for c in checks]
    yield from table_lines(["check", "", "detail"], [(c.name, word, c.detail) for word, c in words])
    yield from (f"{word} {c.name}: {c.remedy}" for word, c in words if not c.ok)
    yield ""
    rows = [
        (
            rung["name"],
            "taken" if rung["name"] == plan["rung"] else "ok" if rung["ok"] else "no",
            format_bytes(rung["unseen_bytes"]) if rung["ok"] else None,
            f"{rung['unseen_ms']:g} ms" if rung["ok"] else None,
            rung["detail"] if rung["ok"] else f"{rung['detail']}: {rung['remedy']}",
        )
        for rung in plan["rungs"]
    ]
    yield from table_lines(["hooks", "", "unseen at most", "for", "detail"], rows)
    yield f"hook plan: {plan['rung'] or 'none: fix what says NO'}"
    if daemon is not None:
        config, why = daemon.config, daemon.info.not_ready
        ready = f"not ready: {why}" if why else "ready"
        yield f"daemon: {daemon}, mode {config.mode}, hooks {config.rung}, {ready}"

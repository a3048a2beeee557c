"""The hooks: by what this kernel offers to learn of memory, best first, what each can promise, and what it refused.

`memcg-tracepoint` is in Linux 6.13 and later, `kprobe` in 5.8 (ring buffers); what each sees is in
docs/hooks.md. Found out from BTF (which has `btf_trace_NAME` of every tracepoint that takes BPF programs) and the list
of performance-monitoring units, never from a release number: distributions carry things back. The verifier or a
lockdown may still refuse an offer: the loader then tries the next. `outrace run` chooses from the offers
(`monitor.cli.hooks`), `outrace doctor` prints them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from monitor.errors import CannotError
from monitor.kernel import libbpf
from monitor.kernel.btf import Btf
from monitor.kernel.pins import FUNCTIONS, HOOKS, KPROBE, TRACEPOINT

AUTO = "auto"
POLL = "poll"
BPF_RUNGS = tuple(HOOKS)
NAMES = (*BPF_RUNGS, POLL)

#: As BTF spells them; the value is a long since 7.2.
_EVENT_ARGUMENTS = [["mem_cgroup*", "int", value] for value in ("int", "long", "long int")]
_ARGUMENTS = {
    "page_counter_try_charge": ["page_counter*", "long unsigned int", "page_counter**"],
    "page_counter_uncharge": ["page_counter*", "long unsigned int"],
}
_UPDATE = "run Linux 6.13 or newer"
#: What hooks on charges do not see (monitor/kernel/bounds.py: PARTIAL_SWEEP_NS, REREAD_NS).
_PARTIAL = "; page cache that turns active is seen within 1 s, processes of the root cgroup within 1.6 to 20 ms"
#: After a hook failed while the daemon ran, BPF is left alone for so long: hooks have all but two programs in common,
#: and to fail again and again is worse than to poll. Why it failed is in this file of the state dir, and when is the
#: file's time.
FAILED, FAILED_S = "failed-hook", 600.0
#: What each hook is attached to.
EVENTS = {TRACEPOINT: "memcg:mod_memcg_lruvec_state", KPROBE: FUNCTIONS["on_charge"]}
#: The one of the kernel's lockdown modes under which BPF may not read kernel memory.
CONFIDENTIAL = "[confidentiality]"
NOT_CONFIDENTIAL = "boot with lockdown=integrity: confidentiality forbids BPF to read kernel memory"


@dataclass(frozen=True, slots=True)
class Offer:
    """One hook. ``why`` is what speaks for or against it, ``remedy`` what would make it available ("" if it is)."""

    name: str
    ok: bool
    why: str
    remedy: str = ""


def offered() -> list[Offer]:
    """The hooks, best first, each with whether this kernel offers it. Raises nothing: no BTF is a reason, too."""
    try:
        btf = Btf()
    except CannotError as error:
        return [Offer(name, False, error.message, error.remedy) for name in HOOKS]
    offers = []
    for name, look in ((TRACEPOINT, _tracepoint), (KPROBE, _kprobe)):
        try:
            _every_hook(btf)
            look(btf)
            offers.append(Offer(name, True, EVENTS[name]))
        except CannotError as error:
            offers.append(Offer(name, False, error.message, error.remedy or _UPDATE))
    return offers


def lockdown(path: Path = Path("/sys/kernel/security/lockdown")) -> str | None:
    """The kernel's lockdown modes, the one in force in brackets; None if it has none, or securityfs is not mounted.
    Raises OSError.
    """
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return None


def obstacle() -> tuple[str, str]:
    """Why this kernel takes none of the programs, and the remedy; ("", "") if nothing is known to be in the way. A
    lockdown that cannot be read (AppArmor's profile for containers forbids it) is found by loading.
    """
    with suppress(OSError):
        mode = lockdown() or ""
        if CONFIDENTIAL in mode:
            return f"lockdown: {mode}", NOT_CONFIDENTIAL
    return "", ""


def _every_hook(btf: Btf) -> None:
    """Raises CannotError for what speaks against every hook."""
    if not btf.has_member("bpf_ringbuf", "mask"):  # all else that they read has been there for longer
        raise CannotError("this kernel has no BPF ring buffers", "run Linux 5.8 or newer")
    for event in ("oom:mark_victim", "signal:signal_generate"):
        if not btf.has_tracepoint(event.partition(":")[2]):
            raise CannotError(f"this kernel has no tracepoint {event}", "run a kernel with CONFIG_TRACING=y")


def _tracepoint(btf: Btf) -> None:
    """Raises CannotError for what speaks against the hook, as do the functions of the others."""
    for event in ("mod_memcg_lruvec_state", "mod_memcg_state"):
        if not btf.has_tracepoint(event):
            raise CannotError(f"this kernel has no tracepoint memcg:{event}", _UPDATE)
        arguments = btf.tracepoint_args(event)
        if arguments not in _EVENT_ARGUMENTS:
            raise CannotError(f"this kernel changed memcg:{event}({', '.join(arguments)})", "report this line")


def _kprobe(btf: Btf) -> None:
    for name, arguments in _ARGUMENTS.items():
        found = btf.function(name)
        if found is None:
            raise CannotError(f"this kernel has no function {name} of its own", _UPDATE)
        if found != arguments:
            raise CannotError(f"this kernel changed {name}({', '.join(found)})", "report this line")
    if not libbpf.KPROBE_PMU.exists():
        raise CannotError("this kernel has no kprobes", "run a kernel with CONFIG_KPROBES=y")
    if not any(btf.has_member("pt_regs", name) for name in ("di", "regs")):
        raise CannotError("the registers of this machine are not known", "use another hook")


def bpf_offers(
    state_dir: Path,
    *,
    wanted: str = AUTO,
    lacking: tuple[str, str] = ("", ""),
    barred: tuple[str, str] = ("", ""),
) -> Iterator[Offer]:
    """The rungs that need BPF, for `outrace run` and `outrace doctor` alike. BTF is read for the first whose programs
    are not pinned.

    Programs that ``state_dir`` has pinned are used whatever forbids to load them today; but a lockdown forbids to
    attach kprobes, too. What failed while a daemon ran is tried again only where it is ``wanted`` by name.
    ``lacking``: what is known to keep programs from being loaded, and the remedy; ``barred``: from being attached.
    `outrace run` finds out by doing both.
    """
    from monitor.kernel import loader

    pinned, has_failed, locked = loader.pinned(state_dir), failed(state_dir), obstacle()
    if locked[0]:
        lacking = locked
    kernels: dict[str, Offer] = {}
    for name in HOOKS:
        ready = name in pinned and not (name == KPROBE and locked[0])
        against = barred if ready else lacking
        if not ready and not locked[0]:
            kernels = kernels or {offer.name: offer for offer in offered()}
            if not kernels[name].ok:
                against = kernels[name].why, kernels[name].remedy
        if has_failed and not against[0] and wanted != name:
            against = has_failed, f"a start 10 minutes later, or `outrace run --hooks {name}`, tries it again"
        yield Offer(name, not against[0], against[0] or _seen(name, ready), against[1])


def _seen(name: str, ready: bool) -> str:
    since = ", by programs that are pinned already" if ready else ""
    return f"{EVENTS[name]}, compared in the kernel{since}{'' if name == TRACEPOINT else _PARTIAL}"


def failed(state_dir: Path) -> str:
    """Why a hook failed in the last ten minutes, while a daemon ran; "" if none did."""
    note = state_dir / FAILED
    with suppress(OSError):
        if 0 <= time.time() - note.stat().st_mtime < FAILED_S:
            return note.read_text(errors="replace")
    return ""


def remember_failed(state_dir: Path, why: str) -> None:
    """Note why a hook failed while the daemon ran. A state dir that cannot be written loses it."""
    with suppress(OSError), open(state_dir / FAILED, "w", opener=partial(os.open, mode=0o600)) as file:
        file.write(why)

"""Which hook tells that memory was charged: what this kernel offers, best first.

| hook | since | sees |
|---|---|---|
| ``memcg-tracepoint`` | Linux 6.13 | charges, page cache that turns active, the root cgroup's own processes |
| ``fentry`` | 5.5, x86-64; 6.0, arm64 | charges and uncharges, when the page_counter's functions return |
| ``kprobe`` | any with CONFIG_KPROBES | the same, when they are entered |

Found out from tracefs, BTF and the list of performance-monitoring units, never from a release number: distributions
carry things back, and configurations differ. An offer may still be refused by the verifier or by a lockdown: the
loader (monitor/kernel/loader.py) tries, and goes on to the next.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from monitor.kernel import probes
from monitor.kernel.btf import Btf, BtfError
from monitor.kernel.pins import CHARGE, FENTRY, KPROBE, TRACEPOINT, UNCHARGE

#: As BTF spells them; the value is a long since 7.2.
_EVENT_ARGUMENTS = [["struct mem_cgroup *", "int", value] for value in ("int", "long", "long int")]
_ARGUMENTS = {
    CHARGE: ["struct page_counter *", "long unsigned int", "struct page_counter **"],
    UNCHARGE: ["struct page_counter *", "long unsigned int"],
}
_TRACEFS = Path("/sys/kernel/tracing")
_UPDATE = "run Linux 6.13 or newer"


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
    except BtfError as error:
        return [Offer(name, False, error.message, error.remedy) for name in (TRACEPOINT, FENTRY, KPROBE)]
    ways: dict[str, Callable[[Btf], tuple[str, str]]] = {
        TRACEPOINT: _tracepoint, FENTRY: _fentry, KPROBE: _kprobe
    }  # fmt: skip
    offers = []
    for name, look in ways.items():
        try:
            against, remedy = look(btf)
        except BtfError as error:
            against, remedy = error.message, error.remedy or _UPDATE
        event = "memcg:mod_memcg_lruvec_state" if name == TRACEPOINT else CHARGE
        offers.append(Offer(name, not against, against or event, remedy))
    return offers


def _tracepoint(btf: Btf) -> tuple[str, str]:
    mounted = _mounted()
    for event in ("mod_memcg_lruvec_state", "mod_memcg_state"):
        if mounted and not (_TRACEFS / "events/memcg" / event).is_dir():
            return f"this kernel has no tracepoint memcg:{event}", _UPDATE
        arguments = btf.tracepoint_args(event)
        if arguments not in _EVENT_ARGUMENTS:
            return f"this kernel changed memcg:{event}({', '.join(arguments)})", "report this line"
    return "", ""


def _mounted() -> bool:
    """Whether tracefs can be asked. If not (`outrace doctor` by a user, or before the first start), BTF has to do."""
    return os.access(_TRACEFS / "events", os.X_OK)


def _function(btf: Btf) -> tuple[str, str]:
    """What speaks against tracing the two functions at all."""
    for name, arguments in _ARGUMENTS.items():
        found = btf.function(name)
        if found is None:
            return f"this kernel has no function {name} of its own", _UPDATE
        if found[1] != arguments:
            return f"this kernel changed {name}({', '.join(found[1])})", "report this line"
    return "", ""


def _fentry(btf: Btf) -> tuple[str, str]:
    against = _function(btf)
    if against[0]:
        return against
    if btf.enum("BPF_TRACE_FEXIT") is None:
        return "this kernel has no BPF trampolines", "run Linux 5.5 or newer"
    # What a trampoline is attached with; built only with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS.
    if not any(btf.function(name) for name in ("register_ftrace_direct", "modify_ftrace_direct")):
        return "this kernel cannot attach BPF to functions", "run one with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y"
    missing = _untraceable()
    if missing:
        return f"{missing} is not in available_filter_functions", "run a kernel with CONFIG_FUNCTION_TRACER=y"
    return "", ""


def _untraceable() -> str:
    """Which of the functions ftrace cannot patch; "" also when its list cannot be read: then trying tells."""
    try:
        with (_TRACEFS / "available_filter_functions").open() as file:
            left = _ARGUMENTS.keys() - {line.split()[0] for line in file if line.startswith("page_counter_")}
    except FileNotFoundError:
        left = set(_ARGUMENTS) if _mounted() else set()
    except OSError:
        return ""
    return min(left, default="")


def _kprobe(btf: Btf) -> tuple[str, str]:
    against = _function(btf)
    if against[0]:
        return against
    if not probes.KPROBE_PMU.exists():
        return "this kernel has no kprobes", "run a kernel with CONFIG_KPROBES=y"
    if not any(btf.has_member("pt_regs", name) for name in ("di", "regs")):
        return "the registers of this machine are not known", "use another hook"
    return "", ""

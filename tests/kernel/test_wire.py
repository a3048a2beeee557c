"""The structs that BPF writes and Python reads are the same bytes: the header against the decoder, and real records."""

import itertools
import re
import struct
import subprocess
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.actions.procfeed import BpfFeed
from monitor.kernel import cgroupfs, domains, loader, wire
from tests import live
from tests.daemon import blinder

HEADER = (loader.bpf_directory() / "wire.h").read_text()
CODES = {"u64": "Q", "s64": "q", "u32": "I", "s32": "i"}
OOM_KINDS = ("OOM_MARK", "OOM_KILL", "OOM_EXIT", "OOM_RECLAIM")
OOM_FLAGS = ("OOM_EXITING", "OOM_MEMSW", "OOM_BY_ITSELF")
NAMES = {name: int(value, 0) for name, value in re.findall(r"#define (\w+) (0x[0-9a-f]+|\d+)(?:LL)?\b", HEADER)}


def members(struct_name: str) -> list[tuple[str, str, int]]:
    """(type, name, how many) of each member, in order."""
    found = re.search(rf"^struct {struct_name} \{{(.*?)^\}};", HEADER, re.S | re.M)
    assert found, f"struct {struct_name} is not in wire.h"
    body = re.sub(r"//.*", "", found[1])
    body = re.sub(r"union \{ (\w+ \w+;)[^}]*\};", r"\1", body)  # all of a size: the first stands for them
    out = []
    for kind, names in re.findall(r"(\w+) ([^;]+);", body):
        for name in names.split(","):
            match = re.fullmatch(r"\s*(\w+)(?:\[(\w+)\])?\s*", name)
            assert match, name
            count = match[2]
            out.append((kind, match[1], 1 if count is None else NAMES.get(count) or int(count)))
    return out


def layout(struct_name: str) -> tuple[str, dict[str, int]]:
    """The `struct` format of native alignment, and each member's byte offset by the rules of C."""
    form, offsets = "@", {}
    for kind, name, count in members(struct_name):
        code = f"{count}s" if kind == "char" else CODES[kind] * count
        offsets[name] = struct.calcsize(form + ("" if kind == "char" else f"0{CODES[kind]}"))
        form += code
    return form, offsets


def enumerators(enum_name: str, text: str = HEADER) -> dict[str, int]:
    found = re.search(rf"^enum {enum_name} \{{(.*?)\}};", re.sub(r"//.*", "", text), re.S | re.M)
    assert found
    out, at = {}, 0
    for part in filter(None, (p.strip() for p in found[1].split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        at = out[name] = out[value] if value in out else int(value, 0) if value else at
        at += 1
    return out


@pytest.mark.parametrize(
    ("name", "decoder"),
    [("event", wire.EVENT), ("oom_event", wire.OOM), ("proc_event", wire.PROC), ("victim", wire.VICTIM)],
)
def test_records_have_the_headers_layout(name: str, decoder: struct.Struct) -> None:
    form, _ = layout(name)
    # The same types in the same order, and no padding: C's alignment and none at all come to the same size.
    assert decoder.format.removeprefix("=") == form.removeprefix("@")
    assert decoder.size == struct.calcsize(form)


def test_the_domain_table_has_the_headers_layout() -> None:
    form, offsets = layout("domain")
    assert struct.calcsize(form) == domains.WORDS * 8
    words = {name: offset // 8 for name, offset in offsets.items()}
    ours = {
        "cgroup_id": 0, "flags": domains.FLAGS, "ceiling": domains.CEILING, "lowest": domains.LOWEST,
        "pull_above": domains.PULL, "step": domains.STEP, "rearm_ns": domains.REARM, "usage": domains.USAGE,
        "inactive_file": domains.INACTIVE, "active_file": domains.ACTIVE, "crossed": domains.CROSSED,
        "synced": domains.SYNCED, "dipped": domains.DIPPED,
    }  # fmt: skip
    over = {"step": "steps", "kill": "kills", "exit": "exits", "proc": "processes", "reclaim": "reclaims"}
    ours |= {f"{name}_over": domains.OVER[what] for name, what in over.items()}
    assert ours == {name: words[name] for name in ours}
    assert len(domains.OVER) == sum(name.endswith("_over") for name in words)
    for name in ("MAX_DOMAINS", "MAX_THRESHOLDS", "NO_CEILING"):
        assert getattr(domains, name) == NAMES[name]
    flags = enumerators("domain_flag")
    assert list(flags.values()) == [domains.MACHINE, domains.POD, domains.CGROUP, domains.RECLAIMABLE]
    assert NAMES["RECLAIMABLE_SHIFT"] == domains._NAMED_AT


def test_the_enums_are_the_headers() -> None:
    assert enumerators("event_kind") == {f"EVENT_{name}": getattr(wire, name) for name in ("CROSS", "STEP", "SIGNAL")}
    assert enumerators("oom_kind") == {name: getattr(wire, name) for name in OOM_KINDS}
    assert enumerators("oom_flag") == {name: getattr(wire, name) for name in OOM_FLAGS}
    counted = [name.removeprefix("COUNT_").lower().replace("emit_", "emitted_") for name in enumerators("count")]
    assert counted == [*wire.COUNTS, "max"]


@pytest.mark.parametrize("name", blinder.NAMES)
def test_a_name_of_any_bytes_is_printable(name: bytes) -> None:
    assert len(name) <= 15
    shown = wire.printable(name)
    assert shown.isprintable()
    assert shown.encode()  # no half of a surrogate pair


def test_two_names_never_give_one_text() -> None:
    """Else a user hides a unit behind a twin, or gives it the metrics of another one."""
    parts = [b"\x1b", b"\\", b"x1b", b"x5c", b"\xff", b"xff", "\x85".encode(), b"\x85", b"u0085", b"\xed\xa0\x80", b"a"]
    names = {b"".join(some) for n in range(4) for some in itertools.product(parts, repeat=n)}
    shown: dict[str, bytes] = {}
    for name in names:
        assert shown.setdefault(wire.printable(name), name) == name
    assert len(names) > 1000


@pytest.mark.parametrize("name", ["python3", "a (comm) of 15!", "größe", "名前", "a\\b", "a\\x2db", ""])
def test_an_ordinary_name_stays(name: str) -> None:
    assert wire.printable(name.encode()) == name


@pytest.mark.kernel
def test_processes_that_appear_in_a_pod() -> None:
    """One that joins it, the child of that, and what each of them executes."""
    seen: list[tuple[int, int]] = []  # pid, the cgroup's id
    scores: Any = SimpleNamespace(on_process=lambda *found: seen.append(found))
    with live.Watching(attach=False) as watch, live.cgroup("procs") as pod:
        inner = cgroupfs.make(pod / "container")
        watch.add(pod, flags=domains.POD)
        watch.add(inner)
        script = f"echo $$ > {inner}/cgroup.procs; /bin/true; exec sleep 100"
        with closing(BpfFeed(watch.pins, scores)) as feed, subprocess.Popen(["/bin/sh", "-c", script]) as shell:
            live.until(lambda: feed.consume() or [pid for pid, _ in seen].count(shell.pid) == 2, "exec")
            shell.kill()
        assert {cgroup for _, cgroup in seen} == {cgroupfs.cgroup_id(pod)}, "the pod is named, not its container"
    assert [pid == shell.pid for pid, _ in seen] == [True, False, False, True]

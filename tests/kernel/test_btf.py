"""The BTF reader: against the running kernel, against bpftool's view where there is one, and against BTF made here."""

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import EXIT_CANNOT, CannotError
from monitor.kernel.btf import VMLINUX, Btf

needs_btf = pytest.mark.skipif(not VMLINUX.exists(), reason=f"the kernel has no {VMLINUX}")
TRACING = Path("/sys/kernel/tracing/events")


@pytest.fixture(scope="module")
def kernel() -> Btf:
    return Btf()


class Builder:
    """Writes small BTF blobs: every record a list of 32-bit words, strings collected on the way."""

    def __init__(self) -> None:
        self.strings = b"\0"
        self.words: list[int] = []

    def name(self, text: str) -> int:
        if not text:
            return 0
        self.strings += text.encode() + b"\0"
        return len(self.strings) - len(text) - 1

    def add(self, name: str, kind: int, size: int, *extra: int, vlen: int = 0, flag: int = 0) -> None:
        self.words += [self.name(name), flag << 31 | kind << 24 | vlen, size & 0xFFFFFFFF, *extra]

    def write(self, path: Path) -> Btf:
        types = struct.pack(f"={len(self.words)}I", *self.words)
        header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(self.strings))
        path.write_bytes(header + types + self.strings)
        return Btf(path)


@pytest.mark.live
@needs_btf
def test_offsets_of_the_running_kernel_are_laid_out_as_c_does(kernel: Btf) -> None:
    assert kernel.offset("list_head", "next") == 0
    assert kernel.offset("list_head", "prev") == struct.calcsize("P")
    assert kernel.size("list_head") == 2 * struct.calcsize("P")
    usage = kernel.offset("page_counter", "usage")
    assert kernel.offset("mem_cgroup", "memory.usage.counter") == kernel.offset("mem_cgroup", "memory") + usage
    # struct page is a word of flags and then anonymous unions of anonymous structs.
    assert kernel.offset("page", "lru") == kernel.offset("page", "lru.next") >= struct.calcsize("P")
    assert [kernel.has_member("mem_cgroup", member) for member in ("memory.usage.counter", "no_such")] == [True, False]
    assert not kernel.has_member("no_such_struct", "x")
    assert declared(kernel, "page_counter", "parent") == "page_counter*"
    assert kernel.array_length("task_struct", "comm") == 16


def declared(btf: Btf, struct_name: str, path: str) -> str:
    return btf._describe(btf._walk(struct_name, path).type)


@pytest.mark.live
@needs_btf
def test_enum_values_are_those_the_kernel_prints(kernel: Btf) -> None:
    fields = [line.split()[0] for line in Path("/proc/vmstat").read_text().splitlines()]
    active, inactive = kernel.enum("NR_ACTIVE_FILE"), kernel.enum("NR_INACTIVE_FILE")
    # /proc/vmstat prints the node counters in the order of the enum.
    assert active - inactive == fields.index("nr_active_file") - fields.index("nr_inactive_file")
    assert kernel.enum("SOCK_STREAM") == 1
    assert kernel.enum("OUTRACE_HAS_NO_SUCH_ENUMERATOR") is None


@pytest.mark.live
@needs_btf
@pytest.mark.skipif(not (TRACING / "oom/mark_victim/format").exists(), reason="tracefs is not mounted or not readable")
def test_tracepoint_arguments_match_the_record_in_tracefs(kernel: Btf) -> None:
    text = (TRACING / "oom/mark_victim/format").read_text()
    arguments = kernel.tracepoint_args("mark_victim")
    assert arguments[0] == ("task_struct*" if re.search(r"field:.*\bcomm\b.*__data_loc|anon_rss", text) else "int")
    assert kernel.tracepoint_args("sched_process_fork") == ["task_struct*", "task_struct*"]


@needs_btf
@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda b: b.offset("no_such_struct", "a"), "no_such_struct"),
        (lambda b: b.offset("list_head", "next.deeper"), "list_head has no member next.deeper"),
        (lambda b: b.offset("page_counter", "usage.nothing"), "page_counter has no member usage.nothing"),
        (lambda b: b.size("no_such_struct"), "no_such_struct"),
        (lambda b: b.array_length("list_head", "next"), "list_head member next is list_head*, not an array"),
        (lambda b: b.tracepoint_args("no_such_event"), "no tracepoint no_such_event"),
    ],
)
def test_what_is_missing_is_named(kernel: Btf, ask, named: str) -> None:
    with pytest.raises(CannotError, match=re.escape(named)) as caught:
        ask(kernel)
    assert caught.value.exit_code == EXIT_CANNOT


def test_a_bit_field_has_no_offset_and_its_neighbours_do(tmp_path: Path) -> None:
    made = Builder()
    made.add("int", 1, 4, 32)
    members = (made.name("flag"), 1, 1 << 24 | 3, made.name("count"), 1, 32)
    made.add("s", 4, 8, *members, vlen=2, flag=1)
    btf = made.write(tmp_path / "btf")
    assert btf.offset("s", "count") == 4
    with pytest.raises(CannotError, match="bit field"):
        btf.offset("s", "flag")


@given(sizes=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=12), nested=st.booleans())
def test_every_member_of_a_made_up_struct_is_found_where_it_was_put(tmp_path_factory, sizes, nested: bool) -> None:
    made = Builder()
    for size in (1, 2, 4, 8):
        made.add(f"u{size}", 1, size, size * 8)
    where, at, entries = {}, 0, []
    for i, size in enumerate(sizes):
        at = -(-at // size) * size
        where[f"m{i}"] = (at, f"u{size}")
        entries += [made.name(f"m{i}"), (1, 2, 4, 8).index(size) + 1, at * 8]
        at += size
    made.add("" if nested else "outer", 4, at, *entries, vlen=len(sizes))
    if nested:  # ... as an anonymous member 16 bytes into a struct
        made.add("outer", 4, at + 16, 0, 5, 16 * 8, vlen=1)
    btf = made.write(tmp_path_factory.getbasetemp() / "made.btf")
    for name, (offset, kind) in where.items():
        assert btf.offset("outer", name) == offset + 16 * nested
        assert declared(btf, "outer", name) == kind


@pytest.mark.parametrize(
    "content", [b"", b"\x9f\xeb", bytes(range(64)), struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, 64, 64, 8)]
)
def test_what_is_not_btf_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(CannotError, match="CONFIG_DEBUG_INFO_BTF"):
        Btf(tmp_path / "vmlinux")
    path = tmp_path / "not-btf"
    path.write_bytes(content)
    with pytest.raises(CannotError, match="not-btf") as caught:
        Btf(path)
    assert "\n" not in str(caught.value)

"""The BTF reader: against the running kernel, against bpftool's view where there is one, and against BTF made here."""

import re
import struct
from pathlib import Path

import pytest

from monitor.errors import EXIT_CANNOT, CannotError
from monitor.kernel.btf import VMLINUX, Btf

needs_btf = pytest.mark.skipif(not VMLINUX.exists(), reason=f"the kernel has no {VMLINUX}")
TRACING = Path("/sys/kernel/tracing/events")


@pytest.fixture(scope="module")
def kernel() -> Btf:
    return Btf()


@pytest.mark.live
@needs_btf
def test_offsets_of_the_running_kernel_are_laid_out_as_c_does(kernel: Btf) -> None:
    assert kernel.offset("list_head", "next") == 0
    assert kernel.offset("list_head", "prev") == struct.calcsize("P")
    assert kernel.size("list_head") == 2 * struct.calcsize("P")
    usage = kernel.offset("page_counter", "usage")
    assert kernel.offset("mem_cgroup", "memory.usage.counter") == kernel.offset("mem_cgroup", "memory") + usage
    # Behind the bit fields of a task; struct page is a word of flags and then anonymous unions of anonymous structs.
    assert kernel.offset("task_struct", "tgid") == kernel.offset("task_struct", "pid") + struct.calcsize("i")
    assert kernel.offset("task_struct", "comm") > kernel.offset("task_struct", "tgid")
    assert kernel.offset("page", "lru") == kernel.offset("page", "lru.next") >= struct.calcsize("P")
    assert [kernel.has_member("mem_cgroup", member) for member in ("memory.usage.counter", "no_such")] == [True, False]
    assert not kernel.has_member("no_such_struct", "x")
    assert kernel.array_length("task_struct", "comm") == 16


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
        (lambda b: b.offset("task_struct", "in_execve"), "task_struct member in_execve is a bit field"),
        (lambda b: b.array_length("list_head", "next"), "list_head member next is list_head*, not an array"),
        (lambda b: b.tracepoint_args("no_such_event"), "no tracepoint no_such_event"),
    ],
)
def test_what_is_missing_is_named(kernel: Btf, ask, named: str) -> None:
    with pytest.raises(CannotError, match=re.escape(named)) as caught:
        ask(kernel)
    assert caught.value.exit_code == EXIT_CANNOT


@pytest.mark.parametrize("content", [b"", bytes(range(64))])
def test_what_is_not_btf_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(CannotError, match="CONFIG_DEBUG_INFO_BTF"):
        Btf(tmp_path / "vmlinux")
    path = tmp_path / "not-btf"
    path.write_bytes(content)
    with pytest.raises(CannotError, match="not-btf") as caught:
        Btf(path)
    assert "\n" not in str(caught.value)

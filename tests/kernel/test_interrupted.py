"""A program that interrupts another on the same CPU: each keeps its own state."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs, charging, loader, pins
from monitor.kernel.wire import PAGE
from tests import live
from tests.kernel.test_wire import enumerators

#: Memory cgroups, and pages of page cache that each has before the programs are attached.
MANY, BEFORE = 128, 128
#: Pages that are added at each try, too few for the gate to let one through (64), or to make up for the former.
MORE = 8

#: Load the programs for a state dir, by a process of a cgroup, which is charged for their maps.
_LOAD = """
import sys
from pathlib import Path
from monitor.kernel import loader
with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
    procs.write("0")
loader.ensure_loaded(Path(sys.argv[2]), sys.argv[3])
"""
#: Page cache in a cgroup, put on its list by DONTNEED (of an empty file); then anonymous pages, which get through the
#: gate, with interrupts on.
_FILL = """
def fill(parent, files, which, pages, touch):
    empty = os.open(files + "/empty", os.O_RDWR | os.O_CREAT)
    for n in which:
        with open(parent + "/c%d/cgroup.procs" % n, "w") as procs:
            procs.write("0")
        with open(files + "/%d" % n, "ab", buffering=0) as file:
            for _ in range(pages):
                file.write(bytes(4096))
        os.posix_fadvise(empty, 0, 4096, os.POSIX_FADV_DONTNEED)
        if touch:
            anon(1)
            kept.pop()
    os.close(empty)
""".replace("\n", "\\n").replace('"', '\\"')


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A cgroup that is charged for the memory of the programs' maps, and where they are pinned."""
    if not charging.offered()[0].ok:
        pytest.skip("the other hooks' programs are called where nothing is mapped")
    with live.cgroup("owner") as owner:
        try:
            command = (sys.executable, "-P", "-c", _LOAD, str(owner), str(tmp_path), pins.TRACEPOINT)
            subprocess.run(command, env=live.environment(), check=True)
            yield owner, loader.ensure_loaded(tmp_path, pins.TRACEPOINT)[0]
        finally:
            loader.unload(loader.instance_directory(tmp_path))


@pytest.mark.kernel
@pytest.mark.once  # compiles programs of its own
def test_what_interrupts_a_program_changes_no_sums_of_its_own(owned: tuple[Path, Path], files: Path) -> None:
    """An entry of the map `leaves` is made while page cache is counted. Each 48th has the kernel make more of them at
    once, by an interrupt, and charge them to the process that loaded the programs: `on_memcg_stat` inside
    `on_lruvec_stat`.
    """
    owner, directory = owned
    with live.cgroup("many") as many, live.Watching(attach=False, directory=directory) as watch:
        watch.add(owner)
        indexes = [watch.add(cgroupfs.make(many / f"c{n}")) for n in range(MANY)]
        watch.sweeper.run()
        with live.Puppet(cgroupfs.make(many / "home")) as puppet:
            puppet.do(f"os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}])")
            puppet.do(f'exec("{_FILL}")')
            puppet.do(f"fill('{many}', '{files}', range({MANY}), {BEFORE}, False)")
            with ExitStack() as attached:
                for name in watch.pins.pressure:
                    attached.callback(os.close, watch.pins.attach(name))
                lacking = list(range(MANY))
                # Others on this CPU may get through the gate before it: what was not counted for that is counted at the
                # next try. What was counted, and added to another's sums, is added nowhere else.
                for _ in range(BEFORE // MORE - 1):
                    puppet.do(f"fill('{many}', '{files}', {lacking}, {MORE}, True)")
                    lacking = [n for n in lacking if watch.table.reading(indexes[n]).inactive_file < BEFORE * PAGE]
                    if not lacking:
                        break
    assert lacking == []


@pytest.mark.parametrize("hook", list(pins.HOOKS))
def test_each_program_has_a_gate_and_a_scratch_of_its_own(hook: str) -> None:
    text = re.sub(r"//.*", "", loader.program_text(hook))
    numbers, own = enumerators("own", text), []
    for program in (*pins.HOOKS[hook], "sweep"):
        body = re.search(rf"^int {program}\(.*?^\}}", text, re.S | re.M)
        assert body, program
        (name,) = re.findall(r"\bOWN_\w+", body[0])
        own.append(numbers[name])
    assert sorted(own) == list(range(numbers["OWN_MAX"]))
    assert own[-1] == numbers["OWN_SWEEP"], "which has no gate"
    assert set(re.findall(r"(?:gates|scratches)\.lookup\((.*?)\)", text)) == {"&own"}

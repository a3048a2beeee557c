"""The pins: opened, loaded once, used again, replaced as a whole, never left in halves."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.errors import CannotError, MonitorError
from monitor.kernel import charging, instances, loader, pins
from monitor.kernel.pins import Pins, Ring, pin
from monitor.kernel.procfs import readable
from tests import live
from tests.commands import run

pytestmark = pytest.mark.kernel

MIB = live.MIB
#: What "auto" comes to on this kernel.
HOOK = next((offer.name for offer in charging.offered() if offer.ok), pins.TRACEPOINT)
EVERYTHING = sorted(
    [f"map_{name}" for name in pins.MAPS]
    + [f"prog_{name}" for name in (*(set(pins.TRACEPOINTS) - set(pins.PRESSURE)), *pins.HOOKS[HOOK], *pins.RUN)]
    + [f"link_{name}" for name in pins.OOM]
)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state dir of its own, whose pins go with the test."""
    yield tmp_path
    loader.unload(loader.instance_directory(tmp_path))


def listing(directory: Path) -> list[str]:
    """What is in it, but for whose it is."""
    return sorted(path.name for path in directory.iterdir() if path.name != instances.OWNER)


def load(
    state: Path, root: Path = live.ROOT, prelude: str = "", wrapper: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """`ensure_loaded` of the package below ``root``, in a process of its own."""
    code = f"{prelude}\nimport sys; from pathlib import Path; from monitor.kernel import loader\n"
    code += "print(*loader.ensure_loaded(Path(sys.argv[1])))"
    return run(*wrapper, sys.executable, "-c", code, str(state), env=os.environ | {"PYTHONPATH": str(root)}, cwd="/")


def prog_id(directory: Path) -> int:
    """The kernel's number of one of the pinned programs: another load has another one."""
    fd = Pins(directory).fd("prog_on_mark_victim")
    try:
        with open(f"/proc/self/fdinfo/{fd}") as file:
            return int(next(line.split()[1] for line in file if line.startswith("prog_id:")))
    finally:
        os.close(fd)


@pytest.mark.once
def test_pins_are_used_again_and_replaced_when_the_source_changes(
    state: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = load(state)
    assert first.returncode == 0, first.stderr
    directory = Path(first.stdout.split()[0])
    assert first.stdout.split()[1] == "True"
    assert (listing(directory), listing(directory.parent)) == (EVERYTHING, [directory.name])
    number = prog_id(directory)

    assert loader.ensure_loaded(state) == (directory, False)
    assert prog_id(directory) == number

    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(
        live.ROOT / "monitor", copy / "monitor", symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(live.ROOT / "bpf", copy / "bpf")
    with open(copy / "bpf" / "oom.c", "a") as file:
        file.write("// another version\n")
    second = load(state, copy)
    assert second.returncode == 0, second.stderr
    other = Path(second.stdout.split()[0])
    assert second.stdout.split()[1] == "True"
    assert listing(other.parent) == [other.name] != [directory.name]
    assert listing(other) == EVERYTHING
    assert prog_id(other) != number

    # One that cannot be compiled leaves what is there alone, and that is one line of the log.
    with open(copy / "bpf" / "oom.c", "a") as file:
        file.write("static int x = no_such_thing;\n")
    broken = load(state, copy, "import sys\nsys.excepthook = lambda kind, error, _: print(error.exit_code, error)")
    assert broken.stdout.startswith("3 the BPF programs do not load"), broken.stderr
    assert "loader.log" in broken.stdout
    assert "static int x = no_such_thing;" in (state / "loader.log").read_text()
    assert (listing(other.parent), listing(other)) == ([other.name], EVERYTHING)


#: Where header files of kernels are: with these empty there is no package of headers, and no kernel's build directory.
HIDDEN = ("/usr/src", "/lib/modules")


@pytest.mark.once  # the loader prepares the same headers on every kernel
def test_programs_compile_and_load_where_no_kernel_header_is_installed(state: Path) -> None:
    hide = "\n".join(f"[ ! -d {path} ] || mount -t tmpfs none {path}" for path in HIDDEN)
    wrapper = live.in_own_mounts(
        f"{hide}\n[ ! -e /sys/kernel/kheaders.tar.xz ] || mount --bind /dev/null /sys/kernel/kheaders.tar.xz\n"
        f"[ -z \"$(find {' '.join(HIDDEN)} -name '*.h' 2>/dev/null)\" ]"
    )
    done = load(state, wrapper=wrapper)
    assert done.returncode == 0, done.stderr
    directory = Path(done.stdout.split()[0])
    assert listing(directory.parent) == [directory.name]
    assert directory.name in map(loader.stamp, pins.HOOKS)


def test_headers_that_cannot_be_written_are_named_and_half_of_them_are_completed(tmp_path: Path) -> None:
    for text in ("one", "two"):
        loader.prepare_headers(tmp_path, text)
        assert (tmp_path / "source/include/linux/kconfig.h").read_text() == text
        (tmp_path / "source").unlink()
    with pytest.raises(CannotError, match=r"cannot write .*page.h/tree: Not a directory"):
        loader.prepare_headers(tmp_path / "include/asm/page.h/tree", "text")


KILLED = """
import os, signal, sys
from monitor.kernel import pins
pin, left = pins.pin, int(sys.argv[3])
def and_die(fd, path):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    pin(fd, path)
pins.pin = and_die
from monitor.kernel import loader
sys.exit(loader.main([*sys.argv[1:3], sys.argv[4], str(loader.KUBELETS)]))
"""


def kill_while_pinning(state: Path, target: Path) -> None:
    """Run the loader and kill it before its last pin but one."""
    code = (sys.executable, "-c", KILLED, state, target, str(len(EVERYTHING) - 1), HOOK)
    killed = run(*code, env=live.environment(), cwd="/")
    assert killed.returncode == -signal.SIGKILL
    assert not target.exists(), "half a set of pins must never have the name of a whole one"


@pytest.mark.once
def test_a_killed_loader_leaves_nothing_once_a_daemon_has_started(state: Path) -> None:
    target = loader.instance_directory(state) / loader.stamp(HOOK)
    kill_while_pinning(state, target)
    assert loader.ensure_loaded(state) == (target, True)
    assert (listing(target.parent), listing(target)) == ([target.name], EVERYTHING)
    # The same beside pins that are good and stay in use.
    kill_while_pinning(state, target.with_name("another"))
    assert len(listing(target.parent)) == 2
    assert loader.ensure_loaded(state) == (target, False)
    assert (listing(target.parent), listing(target)) == ([target.name], EVERYTHING)


def test_a_pin_that_is_not_there_is_named() -> None:
    with pytest.raises(MonitorError, match=r"no BPF programs are pinned at /none; start `outrace run`"):
        Pins(Path("/none"))
    pins = Pins(live.pin_dir())
    with pytest.raises(MonitorError, match="map_nothing: No such file or directory; `outrace unload` and start again"):
        pins.fd("map_nothing")
    with pytest.raises(MonitorError, match="cannot pin /sys/fs/bpf"):
        pin(0, Path("/sys/fs/bpf/outrace-test-not-an-object"))  # descriptor 0 is no BPF object


def test_an_error_in_a_callback_is_raised_when_the_ring_is_drained() -> None:
    seen: list[bytes] = []

    def fails(data: bytes) -> None:
        seen.append(data)
        raise ZeroDivisionError

    with live.cgroup("ring") as pod, live.Watching() as watch, live.Puppet(pod) as puppet:
        watch.add(pod, step=MIB)
        watch.sweeper.run()
        watch.consume()
        ring = Ring(watch.pins, "steps", fails)
        try:
            puppet.do("anon(8)")
            assert readable(ring, live.TIMEOUT_S)
            with pytest.raises(ZeroDivisionError):
                ring.consume()
            assert len(seen) >= 7
            assert ring.consume() == 0
        finally:
            ring.close()
        ring.close()  # twice is no error

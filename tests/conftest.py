"""What every test may use: the `kernel` marker's check of this machine, and hypothesis without deadlines.

And what no test may leave behind: programs pinned under bpffs, which stay attached until `outrace unload`.
"""

import ctypes
import fcntl
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.descriptors import descriptors
from tests.filesystems import Mounts

# A shared machine is sometimes slow: how long an example takes shows nothing about whether the code is right. Every run
# tries the same examples, so that a change is judged by what it changed; `--hypothesis-profile nightly` tries new ones.
settings.register_profile(
    "outrace", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)
settings.register_profile("nightly", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=1000)
settings.load_profile("outrace")

# readline of the process that starts xdist's workers puts the width of its own terminal there, for every program.
if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("COLUMNS", "LINES"):
        os.environ.pop(variable, None)

# A shell that starts this in the background has it, and all that it starts, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: scripts/vm/guest.py boots its guests with it.
EXPENDABLE = "outrace.expendable=1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-kernel",
        action="store_true",
        help="fail, instead of skip, tests marked `kernel` on a machine that cannot run them",
    )
    parser.addoption(
        "--require-guests",
        action="store_true",
        help="fail, instead of skip, tests of the guests themselves where there is no QEMU or no image",
    )


LANES = tomllib.loads((Path(__file__).parent / "races.toml").read_text())


def _races() -> dict[str, bool]:
    """File, test or test with parameters -> whether tests/races.toml takes it out of `make test`, or keeps it there."""
    taken = {name: True for family in LANES["family"] for name in family["tests"]}
    return taken | {name: False for family in LANES["family"] for name in family.get("but", ())}


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the races. xdist gives out files in order: those with tests of the live kernel first, because they take
    long; then those that need no kernel, and among them the ones that no live test may be beside.
    """
    races, alone = _races(), LANES["alone"]["tests"]
    live = set()
    for item in items:
        file, test = item.nodeid.partition("::")[0], item.nodeid.partition("[")[0]
        if next((races[name] for name in (item.nodeid, test, file) if name in races), False):
            item.add_marker("races")
        elif item.get_closest_marker("kernel") or item.get_closest_marker("live"):
            live.add(file)

    def turn(item: pytest.Item) -> tuple[bool, int]:
        file = item.nodeid.partition("::")[0]
        return file not in live or file in alone, zlib.crc32(file.encode())

    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=turn)


@cache
def kernel_obstacle() -> str:
    """Why tests marked `kernel` cannot run here, or the empty string."""
    if os.geteuid() != 0:
        return "not root"
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "the kernel has no BTF (/sys/kernel/btf/vmlinux)"
    if importlib.util.find_spec("bcc") is None:
        return "python3-bpfcc is not importable (apt-get install python3-bpfcc; venv with --system-site-packages)"
    mounts = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
    memory_v1 = any(fields[2] == "cgroup" and "memory" in fields[3].split(",") for fields in mounts)
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    if not memory_v1 and not (unified.exists() and "memory" in unified.read_text().split()):
        return "no memory cgroup hierarchy is mounted"
    # BPF_MAP_CREATE with no attributes: EINVAL when bpf(2) is there, EPERM or ENOSYS when it is forbidden or missing.
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine)
    if number is not None:
        libc.syscall(number, 0, 0, 0)
        if ctypes.get_errno() in (1, 38):
            return f"bpf(2) is refused: {os.strerror(ctypes.get_errno())}"
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In a guest, the text of a failure is printed at once: a guest that dies later has no summary."""
    report = yield
    if report.failed and item.config.getoption("--require-kernel"):
        terminal = item.config.pluginmanager.get_plugin("terminalreporter")
        for text in (report.longreprtext, *(f"{name}:\n{content}" for name, content in report.sections)):
            terminal.write_line(f"\n{text}")
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("expendable") and EXPENDABLE not in Path("/proc/cmdline").read_text().split():
        pytest.skip("takes all memory of the machine: only in a guest of make test-vm, which may be lost")
    if item.get_closest_marker("kernel") and (obstacle := kernel_obstacle()):
        if item.config.getoption("--require-kernel"):
            pytest.fail(f"this machine cannot run kernel tests: {obstacle}", pytrace=False)
        pytest.skip(f"kernel test: {obstacle}")


CGROUPS = Path("/sys/fs/cgroup")
#: The descriptor of a lock on them that sessions and xdist's workers on this machine share: every daemon that starts
#: undoes what a dead one left in any cgroup, so the tests of that (`alone` in tests/races.toml) have no other test of
#: the live kernel beside them. Its time is not in the timeout of a test.
_machine: list[int] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    file = item.nodeid.partition("::")[0]
    alone = file in LANES["alone"]["tests"]
    starts = file in LANES["starts"]["tests"]
    if alone or starts or item.get_closest_marker("kernel") or item.get_closest_marker("live"):
        if not _machine and CGROUPS.is_dir():
            _machine.append(os.open(CGROUPS, os.O_RDONLY))
            fcntl.flock(_machine[0], fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    try:
        return (yield)
    finally:
        if _machine and (not alone or nextitem is None or nextitem.nodeid.partition("::")[0] != file):
            os.close(_machine.pop())


@pytest.fixture(scope="session")
def expected_rungs(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """BPF rungs that must load on this machine, best first; () where it is not given (`live.rungs_expected`)."""
    from tests import live  # only where the fixture is used: it takes an emulated guest a second

    words, required = Path("/proc/cmdline").read_text(), request.config.getoption("--require-kernel")
    return live.rungs_expected(words, os.uname().release, required)


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    with Mounts(tmp_path) as found:
        yield found


PINS = Path("/sys/fs/bpf/outrace")
#: Of the state dir that all tests share until the session ends (`tests.live.state_dir`).
SHARED = "outrace-test-state-"
#: Where this session's tests have their state dirs.
_directories: list[Path] = []


def _pinned() -> dict[str, str]:
    """Instances of pins that this session's tests have made, with pins or without: instance -> state dir, as the
    instances themselves have it. (Others on this machine are of a daemon, or of another session.)
    """
    found = dict[str, str]()
    with suppress(OSError):  # nothing is pinned, or not to be seen by this user
        for instance in PINS.iterdir():
            with suppress(OSError):
                found[instance.name] = os.readlink(instance / "owner").removeprefix("of ")
    return {name: at for name, at in found.items() if any(Path(at).is_relative_to(base) for base in _directories)}


def _none_left(left: dict[str, str]) -> None:
    """Fail, with a line for each."""
    lines = [f"programs are left pinned in {PINS / name} (state dir {left[name]}): unload them" for name in left]
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.fixture(autouse=True, scope="session")
def _session_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary directory of this session's own, also for what it starts: whatever is made is known to be ours."""
    base = tmp_path_factory.getbasetemp().resolve()  # first: a few sessions' are kept, where others can find them
    own = Path(tempfile.mkdtemp(prefix="outrace-tests-")).resolve()
    own.chmod(0o1777)  # some tests run as another user
    _directories.extend((base, own))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(own))
        patch.setattr(tempfile, "tempdir", str(own))
        patch.setenv("OUTRACE_RUN_DIR", str(own / "run"))  # a daemon of this machine is none of any test's
        yield
    if "tests.live" in sys.modules:
        sys.modules["tests.live"].unload_shared()
    left = _pinned()  # before the names of its state dirs go
    if "tests.own_cgroups" in sys.modules:
        sys.modules["tests.own_cgroups"].end_session()
    shutil.rmtree(own, ignore_errors=True)
    _none_left(left)


@pytest.fixture(autouse=True, scope="module")
def _nothing_left_pinned() -> Iterator[None]:
    """A module whose tests leave programs pinned has failed: they stay attached until `outrace unload`."""
    before = _pinned()
    yield
    own = {name: state for name, state in _pinned().items() if not Path(state).name.startswith(SHARED)}
    _none_left({name: state for name, state in own.items() if name not in before})


#: What a module of tests may leave open: what the session shares, and threads of fake servers that end later.
DESCRIPTORS = 24


@pytest.fixture(autouse=True, scope="module")
def _descriptors_closed() -> Iterator[None]:
    """A module whose tests leave many descriptors open has failed: select(2) takes no number of 1,024 and more."""
    before = descriptors()
    yield
    if len(descriptors()) > len(before) + DESCRIPTORS:
        gc.collect()  # 0.2 s: not for every module
        left = sorted(kind for fd, kind in descriptors().items() if fd not in before)
        if len(left) > DESCRIPTORS:
            pytest.fail(f"the tests of this module leave {len(left)} descriptors open: {left}", pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def _garbage_collected() -> Iterator[None]:
    """A socket that a module's tests forgot warns here, and not in whatever test runs when the collector comes by.

    What lives on is frozen: a module's collection takes 1 ms then, not 150.
    """
    yield
    gc.collect()
    gc.freeze()

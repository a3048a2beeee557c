"""The parts of `make test-vm` that need no guest: boot records, what goes in and comes out, choices, the matrix."""

import argparse
import io
import shutil
import struct
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts/vm"
sys.path.insert(0, str(SCRIPTS))

import guest  # noqa: E402  # scripts/vm is no package: it runs before anything is installed
import images  # noqa: E402
import matrix  # noqa: E402
import report  # noqa: E402

from monitor.kernel.pins import HOOKS  # noqa: E402

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git: apt-get install git")

JUNIT = """<?xml version="1.0"?><testsuites>
<testsuite name="pytest" tests="{tests}" failures="{failures}" errors="{errors}" skipped="{skipped}"/></testsuites>"""


@given(st.integers(1, 2**32 - 1))
def test_the_boot_record_has_one_linux_partition_with_the_disk_id_the_kernel_is_given(sectors: int) -> None:
    record = images.mbr(sectors)
    assert len(record) == 512
    assert record[510:] == b"\x55\xaa"
    assert struct.unpack_from("<I", record, 440)[0] == images.DISK_ID
    assert record[450] == 0x83
    assert struct.unpack_from("<II", record, 454) == (images.FIRST_SECTOR, sectors)
    assert not any(record[462:510])


@pytest.mark.skipif(shutil.which("sfdisk") is None, reason="no sfdisk: apt-get install fdisk")
def test_sfdisk_reads_the_boot_record_alike(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with open(disk, "wb") as file:
        file.write(images.mbr(4096))
        file.truncate((images.FIRST_SECTOR + 4096) * 512)
    dump = subprocess.run(["sfdisk", "--dump", disk], capture_output=True, text=True, check=True).stdout
    assert f"label-id: 0x{images.DISK_ID:08x}" in dump
    assert "start=        2048, size=        4096, type=83" in dump


@pytest.mark.parametrize(
    ("names", "kernels"),
    [
        ([], ["6.1", "6.12", "7.2"]),
        (["7.2", "6.1"], ["6.1", "7.2"]),
        (["trixie"], ["6.12"]),
        (["6.1,sid"], ["6.1", "7.2"]),
        (["7.2,5.10"], ["5.10", "7.2"]),
    ],
)
def test_guests_are_called_by_kernel_or_suite(names: list[str], kernels: list[str]) -> None:
    assert [family.kernel for family in images.choose(names)] == kernels


def test_an_unknown_guest_is_one_line_that_lists_the_known() -> None:
    with pytest.raises(
        images.VmError,
        match=r"^no guest '5\.4': there are 5\.10 \(bullseye\), 6\.1 \(bookworm\), 6\.12 \(trixie\), 7\.2 \(sid\)$",
    ):
        images.choose(["5.4"])


def test_a_family_is_told_from_one_whose_number_begins_alike() -> None:
    six_one = images.choose(["6.1"])[0]
    assert six_one.matches("6.1.0")
    assert not six_one.matches("6.12.1")


def test_guests_get_what_the_project_needs_and_no_tools() -> None:
    wanted = " ".join(images.python_requirements())
    for name in ("click", "psutil", "pyroute2", "pytest>=8", "hypothesis"):
        assert name in wanted
    for name in ("mypy", "ruff", "types-"):
        assert name not in wanted


def test_what_a_failed_command_said_is_in_the_error() -> None:
    with pytest.raises(images.VmError, match=r"^`ls /nowhere` failed with exit code 2: .*No such file"):
        images.run("ls", "/nowhere")


def test_when_all_ends_so_do_the_builders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_ended", threading.Event())
    with ThreadPoolExecutor(1) as builder:
        building = builder.submit(images.run, "sh", "-c", "sleep 600; true")  # its child holds the pipes
        while not images._running:
            time.sleep(0.01)
        images.stop_building()
        with pytest.raises(images.VmError, match="exit code -15"):
            building.result(60)
    with pytest.raises(images.VmError, match="exit code -15"):
        images.run("sleep", "600")


def test_an_image_made_from_something_else_is_not_used(tmp_path: Path) -> None:
    builder = images.Builder(images.choose(["6.1"])[0], tmp_path)
    builder.place.mkdir()
    for name in ("disk.img", "vmlinuz"):
        (builder.place / name).touch()
    assert builder.cached() is None
    (builder.place / "stamp").write_text(f"{builder.stamp()} 6.1.0-1-cloud-amd64\n")
    image = builder.cached()
    assert image.release == "6.1.0-1-cloud-amd64"
    (builder.place / "stamp").write_text(f"{'0' * 64} 6.1.0-1-cloud-amd64\n")
    assert builder.cached() is None


def test_each_kernel_is_told_the_rungs_that_it_must_have() -> None:
    assert set(guest.RUNGS) == {family.kernel for family in (*images.OLDER, *images.FAMILIES)}
    assert all(rungs and list(rungs) == [name for name in HOOKS if name in rungs] for rungs in guest.RUNGS.values())
    six_one, seven_two = images.choose(["6.1", "7.2"])
    assert guest.expected(six_one) == "outrace.rungs=fentry,kprobe"
    assert guest.expected(seven_two) == "outrace.rungs=memcg-tracepoint,fentry,kprobe"
    assert guest.expected(seven_two, "lockdown=confidentiality") == "outrace.rungs="


def test_the_word_goes_to_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a guest before the caller's own words, which may say otherwise; and of Vagrant's machine."""
    said: list[str] = []
    monkeypatch.setattr(guest, "watch", lambda command, *_: said.append(command[-1]) or (None, 1.0))
    monkeypatch.setattr(guest, "RESULTS_SIZE", images.MIB)  # nothing comes back
    image = images.Image(images.choose(["6.12"])[0], tmp_path / "disk.img", tmp_path / "vmlinuz", "6.12.1")
    for append in ("", "outrace.rungs=kprobe"):
        guest.boot(image, "true", guest.Options(append=append, accel="tcg"), tmp_path / "results", lambda _: None)
    plain, other = (words.split() for words in said)
    assert [word for word in plain if "rungs" in word] == ["outrace.rungs=fentry,kprobe"]
    assert [word for word in other if "rungs" in word] == ["outrace.rungs=", "outrace.rungs=kprobe"]
    assert '#{ENV.fetch("OUTRACE_WORDS")}"' in (ROOT / "vagrant/offline/Vagrantfile").read_text()


# -- in and out --------------------------------------------------------------------------------------------------------


def test_the_guest_gets_the_files_of_the_tree_links_as_links_and_nothing_built(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    for name in ("monitor/a.py", "bpf/b.c", ".venv/bin/python", "monitor/__pycache__/a.pyc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "monitor/_bpf").symlink_to("../bpf")
    packed = tmp_path / "project.tar"
    guest.pack(packed, "echo hello\n", root)
    assert packed.stat().st_size % images.MIB == 0
    with tarfile.open(packed) as tar:
        members = {member.name: member for member in tar}
        command = tar.extractfile("command")
        assert command.read() == b"echo hello\n"
    assert set(members) == {"command", "project/monitor/a.py", "project/bpf/b.c", "project/monitor/_bpf"}
    assert members["project/monitor/_bpf"].linkname == "../bpf"


def test_a_cache_of_somebody_else_is_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_: argparse.Namespace) -> int:
        raise PermissionError(13, "Permission denied", str(tmp_path / "bookworm.lock"))

    monkeypatch.setattr(matrix, "matrix", refused)
    assert matrix.main([]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"outrace: error: test-vm: {tmp_path}/bookworm.lock: Permission denied; chown -R ")
    assert line.endswith("OUTRACE_VM_CACHE=DIR")


@needs_git
def test_files_not_yet_in_git_go_along_and_ignored_ones_do_not(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "new.py").touch()
    (tmp_path / "old.log").touch()
    assert guest.project_files(tmp_path) == [Path(".gitignore"), Path("new.py")]


def raw_tar(path: Path, files: dict[str, str], size: int = images.MIB) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    with open(path, "r+b") as file:
        file.truncate(size)
    return path


def test_results_come_out_with_the_exit_code(tmp_path: Path) -> None:
    raw = raw_tar(tmp_path / "raw", {"./exit-code": "3\n", "./junit.xml": "<x/>"})
    assert guest.unpack(raw, tmp_path / "results") == 3
    assert (tmp_path / "results/junit.xml").read_text() == "<x/>"


def test_a_guest_that_wrote_nothing_has_no_exit_code(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(images.MIB))
    assert guest.unpack(tmp_path / "raw", tmp_path) is None


@pytest.mark.parametrize("name", ["../escaped", "/escaped", "a/../../escaped"])
def test_a_guest_cannot_write_outside_its_results(tmp_path: Path, name: str) -> None:
    raw = raw_tar(tmp_path / "raw", {name: "x", "exit-code": "0"})
    assert guest.unpack(raw, tmp_path / "results") == 0
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["exit-code"]
    assert not list(tmp_path.glob("escaped"))


# -- the matrix --------------------------------------------------------------------------------------------------------


@given(st.tuples(*[st.integers(0, 1000)] * 4))
def test_every_test_is_counted_once(numbers: tuple[int, int, int, int]) -> None:
    passed, failures, errors, skipped = numbers
    text = JUNIT.format(tests=sum(numbers), failures=failures, errors=errors, skipped=skipped)
    assert report.counts_of(text) == (passed, failures + errors, skipped)


def options(*arguments: str) -> argparse.Namespace:
    return matrix.parser().parse_args(arguments)


def test_what_follows_the_dashes_goes_to_pytest_word_by_word() -> None:
    command = matrix.guest_command(options("--kernel", "6.1", "--", "tests/kernel", "-k", "oom and not slow"))
    assert "--require-kernel tests/kernel -k 'oom and not slow'\n" in command


def test_v1_is_left_out_where_distributions_dropped_it_and_refused_where_nothing_is_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert [family.kernel for family in matrix.possible(options("--cgroup", "v1"))] == ["6.1"]
    said = capsys.readouterr().err
    for kernel in ("6.12", "7.2"):
        assert f"{kernel} is left out: Debian's Linux {kernel} has no memory controller for cgroup v1" in said
    with pytest.raises(images.VmError, match=r"Linux 7\.2 has no memory controller for cgroup v1: --cgroup v1 is for"):
        matrix.possible(options("--cgroup", "v1", "--kernel", "7.2"))


def test_a_guest_runs_the_kernel_tests_and_a_small_one_those_that_take_all_memory() -> None:
    kernel, small = matrix.suites(options())
    assert " -m '(kernel or live) and not slow and not once and" in matrix.guest_command(options(), kernel)
    for family in images.FAMILIES:
        left_out = " and not newest" in matrix.guest_command(options(), kernel.on(family))
        assert left_out == (family.kernel != "7.2")
    everything, *others = matrix.suites(options("--all"))
    assert everything.on(images.FAMILIES[0]) == everything
    assert small.on(images.FAMILIES[0]) == small
    assert " -m '(kernel or live) and not slow and not expendable' " in matrix.guest_command(options(), everything)
    assert others == [small]
    # What cannot be taken back is the last thing a guest does.
    last = "tests/lab/test_global_oom.py tests/lab/test_swap.py tests/lab/test_lockdown.py\ncode=$?\n"
    assert f"-m expendable tests/daemon/test_capacity.py {last}" in matrix.guest_command(options(), small)
    assert (kernel.memory_mib, small.memory_mib) == (None, 512)
    named = set(kernel.selection.split())
    assert {"tests/kernel/test_oom.py", "tests/kernel/test_btf.py", "tests/lab/test_scenarios.py"} <= named
    assert not {"tests/policy/test_ranking.py", "tests/race/test_laws.py"} & named
    once = "tests/daemon/test_supervise.py"  # all of it
    assert once not in named
    assert once in everything.selection.split()
    (asked,) = matrix.suites(options("--", "-k", "oom"))
    assert "--require-kernel -k oom\ncode=$?\n" in matrix.guest_command(options("--", "-k", "oom"), asked)
    (shell,) = matrix.suites(options("--command", "true"))
    assert matrix.guest_command(options("--command", "true"), shell) == "true\n"


def test_pytest_is_interrupted_before_the_guest_is_killed() -> None:
    assert "timeout --signal=INT --kill-after=60 $((85 - SECONDS)) python3" in matrix.guest_command(
        options(), deadline_s=100
    )


def test_no_guest_is_begun_that_could_not_end_in_time(tmp_path: Path) -> None:
    image = images.Image(images.choose(["7.2"])[0], tmp_path, tmp_path, "7.2.1")
    row = matrix.one(image, matrix.SUITES[0], options(), tmp_path, time.monotonic() + matrix.LEAST_S / 2)
    assert not row.good
    assert row.why.startswith("not begun: only ")
    assert row.name in report.lines([row])
    assert row.why in report.lines([row])


@pytest.mark.parametrize("broken", [("sid",), ("bookworm", "trixie", "sid")])
def test_a_kernel_without_an_image_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[str, ...]
) -> None:
    def get(self: images.Builder, _rebuild: bool) -> images.Image:
        if self.family.suite in broken:
            raise images.VmError("sid has Linux 7.3 now\nand more")
        return images.Image(self.family, tmp_path, tmp_path, f"{self.family.kernel}.1")

    def boot(_image: object, _command: str, _how: object, place: Path, _show: object) -> guest.Outcome:
        place.mkdir(parents=True)
        (place / "junit.xml").write_text(JUNIT.format(tests=2, failures=0, errors=0, skipped=0))
        return guest.Outcome(0, "", 1.0)

    monkeypatch.setattr(images.Builder, "get", get)
    monkeypatch.setattr(matrix, "boot", boot)
    for module in (images, guest):  # where none can be built, all ends
        monkeypatch.setattr(module, "_ended", threading.Event())
    families = images.choose([])
    if len(broken) == len(families):
        with pytest.raises(images.VmError, match=r"Linux 7\.3"):
            matrix.guests(options(), families, tmp_path, time.monotonic() + 1000)
        return
    rows = matrix.guests(options(), families, tmp_path, time.monotonic() + 1000)
    said = [(row.name, row.result) for row in rows]
    ran = 2 * len(matrix.SUITES)
    assert said[:ran] == [(kernel + suite.suffix, "ok") for kernel in ("6.1", "6.12") for suite in matrix.SUITES]
    assert said[ran:] == [("7.2" + suite.suffix, "sid has Linux 7.3 now") for suite in matrix.SUITES]
    only = options("--build-only")
    assert [row.kernel for row in matrix.guests(only, families, tmp_path, 0.0)] == ["7.2"] * len(matrix.SUITES)


@pytest.mark.parametrize(
    "junit", [None, "", "<testsuites><testsuite te", JUNIT.format(tests=8, failures=0, errors=0, skipped=8)]
)
def test_a_guest_in_which_no_test_passed_is_not_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, junit: str | None
) -> None:
    def boot(_image: object, _command: str, _how: object, place: Path, _show: object) -> guest.Outcome:
        place.mkdir(parents=True)
        if junit is not None:
            (place / "junit.xml").write_text(junit)
        return guest.Outcome(0, "", 1.0)

    monkeypatch.setattr(matrix, "boot", boot)
    image = images.Image(images.choose(["7.2"])[0], tmp_path, tmp_path, "7.2.1")
    ends = time.monotonic() + 1000
    row = matrix.one(image, matrix.SUITES[0], options(), tmp_path, ends)
    assert (row.good, row.result) == (False, "no test passed")
    shell = options("--command", "true")
    assert matrix.one(image, matrix.suites(shell)[0], shell, tmp_path / "shell", ends).good


@pytest.mark.parametrize(
    ("first", "second", "code", "tried"), [(0, 0, 0, 1), (1, 0, 0, 2), (1, 1, 1, 2), (2, 0, 2, 1), (5, 0, 5, 1)]
)
def test_what_failed_is_run_once_more(tmp_path: Path, first: int, second: int, code: int, tried: int) -> None:
    """The guest's own script, with a pytest that ends as it is told to."""
    impostor = tmp_path / "python3"
    impostor.write_text(f"""#!/bin/sh
echo "$*" >> {tmp_path}/runs
case "$*" in *--last-failed*) exit {second} ;; esac
exit {first}
""")
    impostor.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", matrix.guest_command(options())],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False, capture_output=True,
    )  # fmt: skip
    assert done.returncode == code
    runs = (tmp_path / "runs").read_text().splitlines()
    assert len(runs) == tried
    assert ["again.xml" in run for run in runs] == [False, True][:tried]


@pytest.mark.parametrize("more", [("--all",), ("--kernel", "6.1"), ("--cpus", "4"), ("--", "-k", "oom")])
def test_the_readme_is_not_written_from_anything_else_than_the_whole(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        matrix.main(["--readme", *more])
    assert ended.value.code == 2
    assert "--readme is for the whole matrix" in capsys.readouterr().err


def test_a_wrong_guest_is_one_line_and_exit_code_3() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPTS / "matrix.py", "--kernel", "4.4"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("outrace: error: test-vm: no guest '4.4': there are ")
    assert done.stderr.count("\n") == 1

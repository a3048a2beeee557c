"""Header trees: literal ones of each distribution's layout, and the real one compiled against by BCC."""

import os
from pathlib import Path

import pytest

from monitor.errors import CannotError
from monitor.kernel import headers
from tests.commands import run

ARCH = headers.kernel_arch()
SYSTEM_PYTHON = "/usr/bin/python3"


def tree(path: Path, *parts: str) -> Path:
    """A header tree with the files of ``parts``: "common", "generated"."""
    files = {
        "common": ("include/linux/kconfig.h", f"arch/{ARCH}/include/asm/page.h", f"arch/{ARCH}/include/uapi/asm/a.h"),
        "generated": (
            "include/generated/autoconf.h",
            "include/config/auto.conf",
            f"arch/{ARCH}/include/generated/asm/b.h",
        ),
    }
    for part in parts:
        for name in files[part]:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(f"/* {path.name} {name} */\n")
    return path


@pytest.fixture
def debian(tmp_path: Path) -> Path:
    src = tmp_path / "usr/src"
    tree(src / "linux-headers-6.1.0-56-common", "common")
    tree(src / "linux-headers-6.1.0-56-cloud-amd64", "generated")
    return tmp_path


def test_debians_split_trees_become_one(debian: Path, tmp_path: Path) -> None:
    made = headers.prepare(tmp_path / "state", debian, "6.18.44")
    assert made == str(tmp_path / "state/headers-6.1.0-56-cloud-amd64")
    for name in (
        "include/linux/kconfig.h",
        "include/generated/autoconf.h",
        "include/config/auto.conf",
        f"arch/{ARCH}/include/asm/page.h",
        f"arch/{ARCH}/include/uapi/asm/a.h",
        f"arch/{ARCH}/include/generated/asm/b.h",
        "build/include/linux/kconfig.h",
        "source/include/linux/kconfig.h",
    ):
        assert (Path(made) / name).is_file(), name


def test_a_made_tree_is_used_again_and_a_broken_one_made_again(debian: Path, tmp_path: Path) -> None:
    made = headers.prepare(tmp_path / "state", debian, "6.18.44")
    assert made is not None
    before = os.stat(made).st_ino
    assert headers.prepare(tmp_path / "state", debian, "6.18.44") == made
    assert os.stat(made).st_ino == before
    (Path(made) / "include/generated").unlink()
    assert headers.prepare(tmp_path / "state", debian, "6.18.44") == made
    assert (Path(made) / "include/generated/autoconf.h").is_file()


def test_headers_of_the_running_kernel_need_nothing(debian: Path, tmp_path: Path) -> None:
    modules = debian / "lib/modules/6.1.0-56-cloud-amd64"
    modules.mkdir(parents=True)
    (modules / "build").symlink_to(debian / "usr/src/linux-headers-6.1.0-56-cloud-amd64")
    (modules / "source").symlink_to(debian / "usr/src/linux-headers-6.1.0-56-common")
    assert headers.prepare(tmp_path / "state", debian, "6.1.0-56-cloud-amd64") is None
    assert not (tmp_path / "state").exists()


def test_a_dangling_build_link_does_not_count(debian: Path, tmp_path: Path) -> None:
    modules = debian / "lib/modules/6.18.44"
    modules.mkdir(parents=True)
    (modules / "build").symlink_to("/nonexistent")
    assert headers.own_tree("6.18.44", debian) is None


@pytest.mark.parametrize("where", ["usr/src/linux-headers-5.15.0-91-generic", "usr/src/kernels/6.5.6-300.fc39.x86_64"])
def test_complete_trees_of_ubuntu_and_fedora(tmp_path: Path, where: str) -> None:
    tree(tmp_path / where, "common", "generated")
    made = headers.prepare(tmp_path / "state", tmp_path, "6.18.44")
    assert made is not None
    assert (Path(made) / "include/generated/autoconf.h").is_file()
    assert (Path(made) / "source/include/linux/kconfig.h").is_file()


def test_real_time_trees_are_paired_with_their_own_common_part(tmp_path: Path) -> None:
    src = tmp_path / "usr/src"
    for name, part in (
        ("6.1.0-56-common", "common"),
        ("6.1.0-56-common-rt", "common"),
        ("6.1.0-56-rt-amd64", "generated"),
        ("6.1.0-56-amd64", "generated"),
    ):
        tree(src / f"linux-headers-{name}", part)
    pairs = {s.release: s.common.name.removeprefix("linux-headers-") for s in headers.sources(tmp_path)}
    assert pairs == {"6.1.0-56-rt-amd64": "6.1.0-56-common-rt", "6.1.0-56-amd64": "6.1.0-56-common"}
    chosen = headers.choose(list(headers.sources(tmp_path)), "6.18.44")
    assert chosen.release == "6.1.0-56-amd64"


@pytest.mark.parametrize(
    ("running", "expected"),
    [("6.18.44", "6.12.48+deb13-amd64"), ("6.1.0-50-amd64", "5.10.0-32-amd64"), ("4.19.0", "5.10.0-32-amd64")],
)
def test_the_nearest_older_release_is_chosen(running: str, expected: str) -> None:
    names = ["5.10.0-32-amd64", "7.2.12+deb14-amd64", "6.12.48+deb13-amd64", "6.1.0-56-amd64"]
    found = [headers.HeaderTrees(name, Path(name), Path(name)) for name in names]
    chosen = headers.choose(found, running)
    assert chosen.release == expected


def test_a_package_of_another_architecture_is_not_used(tmp_path: Path) -> None:
    other = tmp_path / "usr/src/linux-headers-6.1.0-56-other"
    tree(other, "common", "generated")
    (other / f"arch/{ARCH}").rename(other / "arch/mips")
    with pytest.raises(CannotError, match=r"apt-get install linux-headers-6\.18\.44"):
        headers.prepare(tmp_path / "state", tmp_path, "6.18.44")


PROGRAM = """
import os, sys
from bcc import BPF
b = BPF(text='''
#include <linux/sched.h>
BPF_ARRAY(forks, u64, 1);
RAW_TRACEPOINT_PROBE(sched_process_fork) {
    int zero = 0;
    u64 *n = forks.lookup(&zero);
    if (n) __sync_fetch_and_add(n, 1);
    return 0;
}
''')
os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
print(b["forks"][0].value)
"""


@pytest.mark.once
@pytest.mark.kernel
def test_bcc_compiles_and_loads_a_program_with_what_is_prepared(tmp_path: Path) -> None:
    source = headers.prepare(tmp_path)
    environment = {**os.environ, "BCC_KERNEL_SOURCE": source} if source else dict(os.environ)
    done = run(SYSTEM_PYTHON, "-c", PROGRAM, env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1

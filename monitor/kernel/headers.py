"""A kernel header tree that BCC accepts: it includes `linux/kconfig.h` and `linux/types.h` before our program.

Our programs include no kernel structs (offsets come from BTF), so headers of another release do: where the running
kernel has none, a distribution's packaged trees are merged by symlinks into one directory for BCC_KERNEL_SOURCE.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from monitor.errors import CannotError

_ARCHES = {"x86_64": "x86", "aarch64": "arm64", "ppc64le": "powerpc", "s390x": "s390", "riscv64": "riscv"}
_KHEADERS = ("sys/kernel/kheaders.tar.xz", "proc/kheaders.tar.xz")


@dataclass(frozen=True)
class HeaderTrees:
    """Header trees found installed: ``arch_tree`` has the generated files, ``common`` the rest (may be the same)."""

    release: str
    arch_tree: Path
    common: Path


def kernel_arch(machine: str = "") -> str:
    """The kernel's name of this machine's architecture (`arch/x86`, `arch/arm64`)."""
    machine = machine or platform.machine()
    return _ARCHES.get(machine, machine)


def own_tree(release: str = "", root: Path = Path("/")) -> str | None:
    """Where BCC finds headers of the running kernel by itself (`/lib/modules/RELEASE/build` or kheaders), or None."""
    modules = root / "lib/modules" / (release or platform.release())
    build, source = modules / "build", modules / "source"
    if _complete(build, source if source.is_dir() else build):
        return str(build)
    # BCC looks at kheaders only when `build` is not a directory, and unpacks them with tar, which calls xz: a minimal
    # system may have the file but not the tools.
    if not build.is_dir() and shutil.which("tar") and shutil.which("xz"):
        for name in _KHEADERS:
            if (root / name).is_file():
                return str(root / name)
    return None


def _complete(arch_tree: Path, common: Path) -> bool:
    """Whether the two hold what BCC includes, for this machine's architecture (packages for others do not help)."""
    return (
        (arch_tree / "include/generated/autoconf.h").is_file()
        and (arch_tree / "arch" / kernel_arch() / "include/generated").is_dir()
        and (common / "include/linux/kconfig.h").is_file()
    )


def sources(root: Path = Path("/")) -> Iterator[HeaderTrees]:
    """Every packaged header tree under /usr/src of ``root``, Debian's split ones paired with their common part."""
    for directory, prefix in ((root / "usr/src", "linux-headers-"), (root / "usr/src/kernels", "")):
        if not directory.is_dir():
            continue
        trees = sorted(tree for tree in directory.iterdir() if tree.name.startswith(prefix) and tree.is_dir())
        for tree in trees:
            release = tree.name.removeprefix(prefix)
            if _complete(tree, tree):  # Ubuntu (links into its common tree), Fedora
                yield HeaderTrees(release, tree, tree)
                continue
            # Debian: 6.1.0-56-cloud-amd64 + 6.1.0-56-common, and 6.1.0-56-rt-amd64 + 6.1.0-56-common-rt: the longest
            # name that fits is the right one.
            for common in reversed(trees):
                version, is_common, flavour = common.name.removeprefix(prefix).partition("-common")
                if is_common and release.startswith(f"{version}{flavour}-") and _complete(tree, common):
                    yield HeaderTrees(release, tree, common)
                    break


def _version(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:4])


def choose(found: list[HeaderTrees], release: str) -> HeaderTrees | None:
    """The tree nearest to ``release``: the newest that is not newer, else the oldest; plain before real-time ones."""
    running = _version(release)
    older = [s for s in found if _version(s.release) <= running]
    ranked = sorted(older or found, key=lambda s: (_version(s.release), "-rt" not in s.release, s.release))
    if not ranked:
        return None
    return ranked[-1] if older else next(s for s in ranked if _version(s.release) == _version(ranked[0].release))


def merge(source: HeaderTrees, tree: Path) -> None:
    """Make ``tree`` a directory of symlinks that looks to BCC like one complete kernel tree, replacing it."""
    arch = kernel_arch()
    building = tree.with_name(f"{tree.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    (building / "include").mkdir(parents=True)
    for entry in source.common.iterdir():
        if entry.name not in ("include", "arch", "build", "source"):
            (building / entry.name).symlink_to(entry.resolve())
    for include in (source.common / "include", source.arch_tree / "include"):
        for entry in include.iterdir():
            if not (building / "include" / entry.name).is_symlink():
                (building / "include" / entry.name).symlink_to(entry.resolve())
    arch_include = building / "arch" / arch / "include"
    arch_include.mkdir(parents=True)
    for name, part in (("asm", source.common), ("uapi", source.common), ("generated", source.arch_tree)):
        (arch_include / name).symlink_to((part / "arch" / arch / "include" / name).resolve())
    # BCC 0.26 looks for BCC_KERNEL_SOURCE/build and /source the way it would under /lib/modules/RELEASE.
    (building / "build").symlink_to(".")
    (building / "source").symlink_to(".")
    shutil.rmtree(tree, ignore_errors=True)
    building.rename(tree)


def prepare(directory: Path, root: Path = Path("/"), release: str = "") -> str | None:
    """What BCC_KERNEL_SOURCE must be: None if BCC finds headers of the running kernel by itself, else a merged tree.

    The tree (symlinks only) is made under ``directory`` and used again while it is complete. CannotError with the
    package to install if this machine has no headers at all.
    """
    release = release or platform.release()
    if own_tree(release, root):
        return None
    source = choose(list(sources(root)), release)
    if source is None:
        others = "linux-headers-cloud-amd64, linux-headers-generic or any other linux-headers package"
        raise CannotError(
            "BCC needs a kernel headers package and none is installed",
            f"apt-get install linux-headers-{release} (or, where that does not exist, {others}: their release need not "
            "match)",
        )
    tree = directory / f"headers-{source.release}"
    if not _complete(tree, tree):
        directory.mkdir(parents=True, exist_ok=True)
        merge(source, tree)
    return str(tree)

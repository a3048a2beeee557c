"""Guest images for `make test-vm`: a Debian root file system with one kernel, made from Debian packages alone.

An image is one raw disk with an MBR and one ext4 partition, and a kernel beside it. There is no initramfs, boot loader
or network: Debian's *cloud* kernels have NVMe and ext4 built in, and QEMU loads the kernel itself. Nothing here asks
for a mirror by name: the address is the one this machine's own apt uses.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import struct
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from commands import VmError, run, say

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MIB = 1 << 20
T = TypeVar("T")
#: The kernel finds its root by this (`root=PARTUUID=...-01`), because the numbering of NVMe namespaces is a matter of
#: chance since Linux 6.12 (they are scanned asynchronously).
DISK_ID = 0x6F757472  # "outr"
FIRST_SECTOR = 2048
#: What a suite's root file system has besides `Essential: yes`. The Python packages are in `python_requirements`.
PACKAGES = (
    "python3", "python3-bpfcc", "libbpf1", "kmod", "procps", "iproute2", "e2fsprogs", "mount", "openssl", "make", "git",
    "ca-certificates", "strace",
)  # fmt: skip
#: Development tools of pyproject.toml that run nothing in a guest.
NOT_IN_GUESTS = ("build", "mypy", "ruff", "types-")


@dataclass(frozen=True)
class Family:
    """A kernel family and the Debian suite it comes from."""

    kernel: str
    suite: str
    security: bool = True
    userland: str = ""  # the suite of everything but the kernel, where its own Python is too old

    def matches(self, release: str) -> bool:
        return release == self.kernel or release.startswith(f"{self.kernel}.")


FAMILIES = (Family("6.1", "bookworm"), Family("6.12", "trixie"), Family("7.2", "sid", security=False))
#: Run when it is named.
OLDER = (Family("5.10", "bullseye", userland="bookworm"),)


@dataclass(frozen=True)
class Image:
    """A built image: the disk, the kernel beside it, and the kernel's release (`uname -r`)."""

    family: Family
    disk: Path
    vmlinuz: Path
    release: str


# -- the programs and the mirror ---------------------------------------------------------------------------------------

#: command -> Debian package
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "setpriv": "util-linux",
}


def install_tools(tools: Mapping[str, str] = TOOLS, files: Mapping[str, str] | None = None) -> None:
    """Install the packages of missing commands and files, as `make setup` does; VmError when that cannot be."""
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    wanted = {package for tool, package in tools.items() if shutil.which(tool, path=search) is None}
    missing = sorted(wanted | {package for file, package in (files or {}).items() if not Path(file).exists()})
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise VmError(
            f"missing {', '.join(missing)}: as root, apt-get install --no-install-recommends {' '.join(missing)}"
        )
    say(f"apt-get install {' '.join(missing)}")
    quiet = ("apt-get", "-qq", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300")
    run(*quiet, "update")
    run(*quiet, "install", "-y", "--no-install-recommends", *missing, env={"DEBIAN_FRONTEND": "noninteractive"})


def mirror(label: str) -> str | None:
    """The address from which this machine's apt takes ``label`` ("Debian", "Debian-Security"), or None."""
    template = "$(LABEL)|$(REPO_URI)"
    listed = run("apt-get", "indextargets", "--format", template, "Created-By: Packages")
    targets = (line.partition("|") for line in listed.splitlines())
    return next((uri for its, _, uri in targets if its == label), None)


def sources(family: Family) -> str:
    """The sources.list of a suite, from this machine's own mirror (or $OUTRACE_VM_MIRROR)."""
    debian = os.environ.get("OUTRACE_VM_MIRROR") or mirror("Debian")
    if not debian:
        raise VmError(
            "this machine's apt knows no Debian mirror (or `apt-get update` never ran): "
            "name one with OUTRACE_VM_MIRROR=http://MIRROR/debian"
        )
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    if not keyring.exists():
        raise VmError(f"{keyring} is missing: apt-get install debian-archive-keyring")
    lines = [f"deb [signed-by={keyring}] {debian} {family.suite} main"]
    security = mirror("Debian-Security")
    if family.security and security:
        lines.append(f"deb [signed-by={keyring}] {security} {family.suite}-security main")
    return "\n".join(lines) + "\n"


def python_requirements(pyproject: Path = ROOT / "pyproject.toml") -> list[str]:
    """What the project and its tests need of PyPI, from pyproject.toml: a suite's own pytest may be too old."""
    project = tomllib.loads(pyproject.read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return [name for name in wanted if not name.startswith(NOT_IN_GUESTS)]


# -- one suite ---------------------------------------------------------------------------------------------------------


class Builder:
    """Builds the image of one family below ``cache``."""

    packages: tuple[str, ...] = PACKAGES
    sources_of_stamp: tuple[str, ...] = ("images.py", "init")

    def __init__(self, family: Family, cache: Path) -> None:
        self.family = family
        self.place = cache / family.suite
        self._work_in(self.place / "work")

    def _work_in(self, work: Path) -> None:
        self.work = work
        self.tree = work / "root"
        self.apt_env = {"APT_CONFIG": str(work / "apt.conf")}

    def stamp(self) -> str:
        """What an image was made from; an image with another stamp is built again."""
        parts = [(HERE / name).read_bytes() for name in self.sources_of_stamp]
        parts.append("\n".join([self.family.suite, *python_requirements()]).encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def cached(self) -> Image | None:
        try:
            stamp, release = (self.place / "stamp").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        image = Image(self.family, self.place / "disk.img", self.place / "vmlinuz", release)
        return image if stamp == self.stamp() and image.disk.exists() and image.vmlinuz.exists() else None

    def get(self, rebuild: bool = False) -> Image:
        """The image, built when it is not there or made from something else. One builder at a time in a cache."""
        self.place.parent.mkdir(parents=True, exist_ok=True)
        with open(self.place.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            image = None if rebuild else self.cached()
            return image or self.build()

    def build(self) -> Image:
        """Build the image anew: about half a minute of work and 400 MiB of packages."""
        if os.geteuid() != 0:
            raise VmError("building a guest image needs root (mmdebstrap, device files): run sudo make test-vm")
        shutil.rmtree(self.work, ignore_errors=True)
        (self.place / "stamp").unlink(missing_ok=True)
        self.work.mkdir(parents=True)
        self.step("package lists", self.lists)
        release = self.step("kernel and headers", self.kernel)
        self.step("root file system", self.rootfs)
        self.step("Python packages", self.python)
        self.step("kernel modules", lambda: self.modules(release))
        self.step("disk image", self.image)
        shutil.rmtree(self.work)
        (self.place / "stamp").write_text(f"{self.stamp()} {release}\n")
        image = self.cached()
        assert image is not None
        return image

    def step(self, what: str, work: Callable[[], T]) -> T:
        """Do one part, saying how long it took."""
        began = time.monotonic()
        try:
            result = work()
        except (OSError, StopIteration) as error:  # no room on the disk, or a package without what is always in it
            raise VmError(f"image {self.family.suite}: {what}: {error or 'something is missing'}") from error
        say(f"image {self.family.suite}: {what}: {time.monotonic() - began:.1f} s")
        return result

    def lists(self) -> None:
        """apt with lists, cache and status of its own, so that this machine's are left alone."""
        for name in ("lists/partial", "cache/archives/partial"):
            (self.work / name).mkdir(parents=True)
        (self.work / "status").touch()
        (self.work / "sources.list").write_text(sources(self.family))
        options = {
            "Dir::State::Lists": self.work / "lists",
            "Dir::State::status": self.work / "status",
            "Dir::Cache": self.work / "cache",
            "Dir::Etc::sourcelist": self.work / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "APT::Sandbox::User": "root",
            "APT::Architecture": "amd64",
            "Acquire::Retries": "3",
            # A mirror's snapshot of sid is often older than its own date of expiry.
            "Acquire::Check-Valid-Until": "false",
        }
        (self.work / "apt.conf").write_text("".join(f'{key} "{value}";\n' for key, value in options.items()))
        run("apt-get", "-qq", "update", env=self.apt_env)

    def kernel(self) -> str:
        """Unpack the newest cloud kernel of the family and its headers below work/kernel; its release."""
        policy = run("apt-cache", "depends", "linux-headers-cloud-amd64", env=self.apt_env)
        newest = re.search(r"Depends: linux-headers-(\S+-cloud-amd64)$", policy, re.M)
        if newest is None:
            raise VmError(f"{self.family.suite} has no linux-headers-cloud-amd64: is its mirror complete?")
        release = newest[1]
        if not self.family.matches(release.split("+")[0].split("-")[0]):
            raise VmError(
                f"{self.family.suite} has Linux {release} now, not {self.family.kernel}: change FAMILIES in images.py"
            )
        # sid splits the image into the kernel (linux-binary) and its modules.
        known = run("apt-cache", "pkgnames", "linux-", env=self.apt_env).split()
        split = [f"linux-binary-{release}", f"linux-modules-{release}"]
        image = split if split[0] in known else [f"linux-image-{release}"]
        headers = [f"linux-headers-{release}", f"linux-headers-{release.removesuffix('-cloud-amd64')}-common"]
        debs = self.work / "debs"
        debs.mkdir()
        run("apt-get", "-qq", "download", *image, *headers, env=self.apt_env, cwd=debs)
        unpacked = self.work / "kernel"
        for deb in sorted(debs.glob("*.deb")):
            run("dpkg-deb", "-x", deb, unpacked)
        kernels = [*unpacked.glob("boot/vmlinuz-*"), *unpacked.glob("usr/lib/modules/*/vmlinuz")]
        if not kernels:
            raise VmError(f"no vmlinuz in {' '.join(image)}")
        shutil.copyfile(kernels[0], self.place / "vmlinuz")
        return release

    def rootfs(self) -> None:
        suite, lists = self.family.suite, self.work / "sources.list"
        if self.family.userland:
            suite, lists = self.family.userland, self.work / "userland.list"
            lists.write_text(sources(replace(self.family, suite=suite)))
        without = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("man", "doc", "locale", "info")]
        run(
            "mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(self.packages)}", *without,
            '--aptopt=Apt::Install-Recommends "false"', '--aptopt=Acquire::Check-Valid-Until "false"',
            '--aptopt=Acquire::Retries "3"',
            suite, self.tree, lists,
        )  # fmt: skip
        (self.tree / "etc/apt/sources.list").unlink(missing_ok=True)  # guests have no network
        shutil.copy(HERE / "init", self.tree / "sbin/outrace-init")
        (self.tree / "sbin/outrace-init").chmod(0o755)

    def python(self) -> None:
        """The versions that pyproject.toml asks for, as wheels; bookworm's own pytest is 7.2, the project wants 8.3."""
        python = next(path for path in (self.tree / "usr/lib").glob("python3.*") if path.is_dir())
        target = self.tree / f"usr/local/lib/{python.name}/dist-packages"
        run(
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--root-user-action=ignore", "--no-compile", "--only-binary=:all:",
            "--python-version", python.name.removeprefix("python"),
            "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64",
            "--target", target, *python_requirements(),
        )  # fmt: skip
        # Bytecode now: compiling it in an emulated guest, at every boot, takes seconds.
        run("chroot", self.tree, f"/usr/bin/{python.name}", "-m", "compileall", "-q", "/usr/local/lib/" + python.name)

    def modules(self, release: str) -> None:
        unpacked = self.work / "kernel"
        source = next(path for path in (unpacked / "lib/modules", unpacked / "usr/lib/modules") if path.is_dir())
        shutil.copytree(source, self.tree / "usr/lib/modules", symlinks=True, dirs_exist_ok=True)
        shutil.copytree(unpacked / "usr/src", self.tree / "usr/src", symlinks=True, dirs_exist_ok=True)
        (self.tree / f"usr/lib/modules/{release}/vmlinuz").unlink(missing_ok=True)
        for name in ("build", "source"):
            link = self.tree / f"usr/lib/modules/{release}/{name}"
            if link.is_symlink():
                target = f"/usr/src/{link.readlink().name}"
                link.unlink()
                link.symlink_to(target)
        for config in (*unpacked.glob("boot/config-*"), *source.glob("*/config")):
            (self.tree / "boot").mkdir(exist_ok=True)
            shutil.copyfile(config, self.tree / f"boot/config-{release}")
        run("chroot", self.tree, "depmod", release)

    def image(self) -> None:
        """The disk: MBR, then an ext4 with two gibibytes to spare for what is written (bench stall: 1080 MiB)."""
        used = int(run("du", "-sm", self.tree).split()[0])
        size = used + used // 10 + 2048
        disk = self.place / "disk.img"
        disk.unlink(missing_ok=True)
        with open(disk, "xb") as file:
            file.truncate(size * MIB + FIRST_SECTOR * 512)
            file.write(mbr(size * MIB // 512))
        # No journal: the disk is thrown away after each run.
        options = ("-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", f"offset={FIRST_SECTOR * 512}")
        run("/usr/sbin/mke2fs", *options, "-d", self.tree, disk, f"{size}M")


def mbr(sectors: int) -> bytes:
    """A master boot record with one Linux partition of ``sectors`` sectors from FIRST_SECTOR on."""
    entry = struct.pack("<B3sB3sII", 0, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff", FIRST_SECTOR, sectors)
    return b"\0" * 440 + struct.pack("<I", DISK_ID) + b"\0\0" + entry + b"\0" * 48 + b"\x55\xaa"


def choose(names: Sequence[str]) -> list[Family]:
    """The families called by kernel ("6.1") or suite ("bookworm"), in the matrix's order; all when none is named."""
    wanted = [name for names_ in names for name in names_.split(",") if name]
    every = (*OLDER, *FAMILIES)
    known = {name: family for family in every for name in (family.kernel, family.suite)}
    for name in wanted:
        if name not in known:
            raise VmError(f"no guest {name!r}: there are {', '.join(f'{f.kernel} ({f.suite})' for f in every)}")
    return [family for family in every if family in [known[name] for name in wanted]] if wanted else list(FAMILIES)

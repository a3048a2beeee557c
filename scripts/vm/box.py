"""A Vagrant box made from Debian packages alone: the guest image of `images.py` with systemd, ssh and an initrd.

The root file system gets what Vagrant's guide to base boxes asks for: a user `vagrant` with Vagrant's well-known key
and sudo without a password, rsync for the synced folder; and qemu-guest-agent, which tells vagrant-libvirt the address
where no DHCP server of libvirt's can. The kernel is booted by QEMU itself, so there is no boot loader.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from commands import VmError, run
from images import PACKAGES, Builder, Family, Image

#: What `outrace bench peers` runs beside outrace, one at a time.
PEERS = ("earlyoom", "nohang", "systemd-oomd")
#: Their units, masked: a package's own drop-in for users' sessions starts systemd-oomd, another one two of nohang.
PEERS_UNITS = ("earlyoom", "nohang", "nohang-desktop", "systemd-oomd.socket", "systemd-oomd")
#: For systemd, for Vagrant (ssh to rsync), for the initrd (virtio disks are modules in Debian's cloud kernels), for the
#: package of `make deb`, for what the tests put beside it: a user's own manager and bus, podman's containers and pods.
BOX_PACKAGES = (
    "systemd-sysv", "udev", "dbus", "libpam-systemd", "openssh-server", "sudo", "rsync", "qemu-guest-agent",
    "initramfs-tools", "zstd", "python3-psutil", "python3-yaml", "dbus-user-session", "podman", "crun", "catatonit",
    *PEERS,
)  # fmt: skip
NETWORK = "[Match]\nType=ether\n\n[Network]\nDHCP=ipv4\n"


@dataclass(frozen=True)
class Box:
    """A built box with the kernel and initrd it is booted with."""

    file: Path
    vmlinuz: Path
    initrd: Path
    release: str


def insecure_key() -> str:
    """Vagrant's well-known public key, from the installed package."""
    found = sorted(Path("/usr/share/rubygems-integration/all/gems").glob("vagrant-2*/keys/vagrant.pub"))
    if not found:
        raise VmError("no vagrant.pub in Debian's package vagrant: is it installed?")
    return found[-1].read_text()


class BoxBuilder(Builder):
    """Builds the box of one family below ``cache``, beside the image that `make test-vm` uses."""

    packages = (*PACKAGES, *BOX_PACKAGES)
    sources_of_stamp = (*Builder.sources_of_stamp, "box.py")

    def __init__(self, family: Family, cache: Path) -> None:
        super().__init__(family, cache)
        self.place = cache / f"{family.suite}-box"
        self._work_in(self.place / "work")

    def box(self, rebuild: bool = False) -> Box:
        """The box, built when it is not there or made from something else."""
        image = self.get(rebuild)
        file = self.place / "outrace.box"
        if not file.exists():
            self.step("box", lambda: self.pack(image, file))
        return Box(file, image.vmlinuz, self.place / "initrd", image.release)

    def image(self) -> None:
        self.step("systemd, ssh, initrd", self.prepare)
        super().image()
        (self.place / "outrace.box").unlink(missing_ok=True)

    def prepare(self) -> None:
        """What makes a root file system a Vagrant machine."""
        tree = self.tree
        (tree / "etc/fstab").write_text("/dev/vda1 / ext4 defaults 0 1\n")
        (tree / "etc/hostname").write_text("outrace\n")
        (tree / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 outrace\n")
        (tree / "etc/systemd/network").mkdir(parents=True, exist_ok=True)
        (tree / "etc/systemd/network/ether.network").write_text(NETWORK)
        (tree / "etc/sudoers.d/vagrant").write_text("vagrant ALL=(ALL) NOPASSWD: ALL\n")
        (tree / "etc/sudoers.d/vagrant").chmod(0o440)
        run("chroot", tree, "useradd", "-m", "-s", "/bin/bash", "vagrant")
        run("chroot", tree, "systemctl", "enable", "systemd-networkd", "ssh")
        run("chroot", tree, "systemctl", "mask", *PEERS_UNITS)
        keys = tree / "home/vagrant/.ssh"
        keys.mkdir(mode=0o700)
        (keys / "authorized_keys").write_text(insecure_key())
        (keys / "authorized_keys").chmod(0o600)
        run("chroot", tree, "chown", "-R", "vagrant:vagrant", "/home/vagrant")
        release = next((tree / "usr/lib/modules").iterdir()).name
        run("chroot", tree, "mkinitramfs", "-o", "/tmp/initrd", release)
        shutil.move(tree / "tmp/initrd", self.place / "initrd")
        (self.place / "initrd").chmod(0o644)

    def pack(self, image: Image, file: Path) -> None:
        """The box: a tar of the disk as qcow2, its metadata, and an empty Vagrantfile."""
        place = self.place / "pack"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", image.disk, place / "box.img")
        size = -(-image.disk.stat().st_size // (1 << 30))
        (place / "metadata.json").write_text(
            json.dumps({"provider": "libvirt", "format": "qcow2", "virtual_size": size})
        )
        (place / "Vagrantfile").write_text("Vagrant.configure('2') {}\n")
        with tarfile.open(file.with_suffix(".part"), "w") as tar:
            for name in ("metadata.json", "Vagrantfile", "box.img"):
                tar.add(place / name, arcname=name)
        file.with_suffix(".part").rename(file)
        shutil.rmtree(place)

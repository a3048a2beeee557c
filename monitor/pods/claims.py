"""What the machine itself runs on, by the path of a cgroup and by the processes that are there now.

No annotation may name such a cgroup as a pod's, and such a service is never evicted. A process of a pod may call itself
sshd and bring a program of that path along: what counts is that it is root's, in the machine's own pid namespace, and
runs the machine's own file. A name in a user's own manager protects nothing, because users name their units; and a
process there protects only as root's (`holds`), or as the session manager that the machine has (`by_session`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from monitor.kernel import cgroup_procs
from monitor.kernel.procfs import Process, directories, is_kernel_thread
from monitor.owner import others
from monitor.pods.units import CONTAINER, MONITOR, PLAIN, Place

#: Slices that hold others' units, and the cgroup of process 1.
_OF_THE_SYSTEM = ("init.scope", "system.slice", "user.slice", "machine.slice")
_DELETED = " (deleted)"  # the file was replaced, as an upgrade does, and the process runs on
#: A user's service manager with all that is below it: `classify` goes into it, so that it is seldom a pod itself.
_MANAGER = re.compile(r"user@[^/]*\.service")
_SESSION = re.compile(r"session-[^/]*\.scope")
#: Names of processes that are about to become a service or a container: systemd's child before it executes, its
#: helper, the runtimes' own; podman, until it has made the container's cgroup. They have the runtime's oom_score_adj.
_STARTING = ("(", "systemd-executo", "runc", "crun", "youki", "podman")


#: What a machine is started, reached and run by: what is lost, the names of root's units without their kind, and the
#: programs of root's processes as their files are called. A name counts only where root gave it. Whole names, or
#: patterns for the instances of a unit and its helpers: what merely begins alike (``dropbear-exporter.service``) is
#: anybody's.
_GROUPS = (
    (
        "the service manager, its journal, devices and logins, D-Bus",
        "systemd-* dbus dbus-broker udev eudev elogind user-runtime-dir@*",
        "systemd systemd-journald systemd-logind systemd-udevd systemd-networkd systemd-resolved udevd elogind"
        " elogind-daemon dbus-daemon dbus-broker",
    ),
    (
        "logins over the network, and the shells that are in its cgroup",
        "ssh ssh@* sshd sshd@* sshd-vsock@* sshd-unix-local@* dropbear dropbear@* tinysshd tinysshd@*",
        "sshd sshd-session sshd-auth dropbear dropbearmulti tinysshd",
    ),
    (
        "logins at the console and the screen",
        "getty@* autovt@* serial-getty@* console-getty container-getty@* display-manager gdm gdm3 sddm lightdm lxdm xdm"
        " greetd ly ly@* polkit emergency rescue debug-shell",
        "login agetty mingetty sulogin",
    ),
    (
        "who may log in: users and groups of a directory",
        "sssd sssd-autofs sssd-ifp sssd-kcm sssd-nss sssd-pac sssd-pam sssd-ssh sssd-sudo nslcd nscd winbind",
        "sssd sssd_be sssd_nss sssd_pam nslcd winbindd",
    ),
    ("the record of what happened", "rsyslog syslog-ng sysklogd auditd", "auditd"),
    (
        "what keeps the machine from a reboot by a watchdog, or from being fenced by its cluster",
        "watchdog wd_keepalive watchdog-mux sbd sbd_remote corosync corosync-qdevice pacemaker pacemaker_remote"
        " pve-cluster pve-ha-lrm pve-ha-crm dlm sanlock wdmd rebootmgr locksmithd zincati update-engine"
        " watchdogd bmc-watchdog cman booth@* corosync-qnetd keepalived fence_virtd ovirt-ha-agent ovirt-ha-broker"
        " vdsmd oracle-ohasd gpfs vcs vxfen heartbeat xen-watchdog xhad",
        "watchdog wd_keepalive watchdog-mux sbd corosync pacemakerd pacemaker-fenced pacemaker_remoted pmxcfs"
        " dlm_controld sanlock wdmd watchdogd bmc-watchdog keepalived pve-ha-lrm pve-ha-crm ovirt-ha-agent ohasd.bin"
        " ocssd.bin cssdagent cssdmonitor mmfsd had xhad heartbeat xenwatchdogd",
    ),
    (
        "disks over the network and those of several parts",
        "iscsid open-iscsi multipathd mdmon@* mdmonitor dm-event lvm2-lvmetad zfs-zed",
        "iscsid multipathd mdmon dmeventd",
    ),
    (
        "a package manager at work: broken off, it leaves the system half installed",
        "packagekit apt-daily apt-daily-upgrade unattended-upgrades dnf-automatic dnf-automatic-* dnf-makecache"
        " dnf5daemon-server dnf-system-upgrade yum-cron zypp-refresh transactional-update rpm-ostreed"
        " rpm-ostreed-automatic bootc-fetch-apply-updates nixos-upgrade rauc mender-client mender-updated snapd"
        " flatpak-system-helper fwupd pamac-daemon dnf5-automatic dnf5-offline-transaction packagekit-offline-update"
        " yum-updatesd ostree-finalize-staged eos-updater swupd-update fwupd-refresh snapd.* apt-news esm-cache",
        "packagekitd dpkg apt apt-get aptitude rpm dnf5 dnf5daemon-server zypper pacman apk rpm-ostree snapd fwupd"
        " dnf dnf-3 dnf4 yum yum-cron microdnf tdnf unattended-upgrade emerge xbps-install opkg eopkg swupd bootc",
    ),
    (
        "the network",
        "networking network ifup@* NetworkManager ModemManager connman iwd wpa_supplicant wpa_supplicant@*"
        " wpa_supplicant-*@* hostapd hostapd@* wicked wickedd wickedd-nanny wickedd-auto4 wickedd-dhcp4 wickedd-dhcp6"
        " pppd pppd@* ppp@* pppoe pppoe@* openvswitch-switch ovs-vswitchd ovsdb-server"
        " dhclient dhclient@* isc-dhclient isc-dhclient@* dhcpcd dhcpcd@* udhcpc udhcpc@* frr frr@*"
        " bird bird@* bird6 bird6@* quagga zebra bgpd ospfd ospf6d ripd ripngd isisd",
        "NetworkManager connmand iwd wpa_supplicant hostapd wickedd wickedd-nanny wickedd-auto4 wickedd-dhcp4"
        " wickedd-dhcp6 pppd ovs-vswitchd ovsdb-server dhclient dhcpcd watchfrr zebra bgpd ospfd bird bird6",
    ),
    (
        "the private network by which the machine may be reached",
        "tailscaled openvpn openvpn@* openvpn-client@* openvpn-server@* openvpnas wg-quick@* wireguard-go@*"
        " strongswan strongswan-starter strongswan-swanctl ipsec zerotier-one netbird",
        "tailscaled openvpn wireguard-go charon charon-systemd zerotier-one netbird",
    ),
    (
        "the cloud's or the hypervisor's agent, by which the machine gets keys, a console, commands",
        "cloud-init cloud-init-local cloud-init-main cloud-init-network cloud-init-hotplugd cloud-config cloud-final"
        " amazon-ssm-agent snap.amazon-ssm-agent.* google-guest-agent google-guest-agent-manager"
        " google-guest-compat-manager walinuxagent waagent qemu-guest-agent qemu-ga open-vm-tools vmtoolsd vgauth"
        " vgauthd hv-kvp-daemon hv-vss-daemon hv-fcopy-daemon hv_kvp_daemon hv_vss_daemon hv_fcopy_daemon"
        " hyperv-daemons.hv-*-daemon hypervkvpd hypervvssd hypervfcopyd xe-daemon xe-linux-distribution",
        "amazon-ssm-agent ssm-agent-worker ssm-session-worker google_guest_agent google_guest_agent_manager"
        " google_guest_compat_manager qemu-ga vmtoolsd VGAuthService hv_kvp_daemon hv_vss_daemon hv_fcopy_daemon"
        " hv_fcopy_uio_daemon hypervkvpd hypervvssd hypervfcopyd xe-daemon",
    ),
    (
        "containers and their runtime",
        "kubelet kubelite containerd crio cri-o docker cri-docker k3s k3s-agent rke2-server rke2-agent k0s"
        " k0scontroller k0sworker snap.microk8s.* snap.docker.* buildkit podman podman-auto-update podman-restart"
        " nomad ecs slurmd mesos-slave mesos-agent condor pbs hadoop-yarn-nodemanager podman-clean-transient"
        " podman-kube@* conmon conmon-* lxd incus incusd lxcfs incus-lxcfs"
        " snap.lxd.daemon lxc-net lxc-monitord pbs_mom torque-mom trqauthd lsfd sgeexecd sgeexecd.* gridengine-exec vz"
        " vcmmd balena balena-engine multipassd snap.multipass.*",
        "kubelet kubelite hyperkube containerd crio dockerd cri-dockerd k3s k3s-server k3s-agent rke2 k0s lxd incusd"
        " lxcfs",
    ),
    (
        "virtual machines and their manager",
        "libvirtd virtqemud virtnetworkd virtlogd virtlockd virtstoraged virtnodedevd virtinterfaced virtsecretd"
        " virtnwfilterd virtproxyd virtxend virtlxcd virtvboxd virtchd pvedaemon pveproxy"
        " pvescheduler pvestatd spiceproxy pve-firewall qmeventd pve-lxc-syscalld"
        " xenstored xenconsoled xenopsd-xc xapi message-switch xcp-networkd forkexecd",
        "xenstored oxenstored",
    ),
    ("outrace itself", "outrace outrace-* outrace@*", ""),
)
#: What a unit's name ends with where it is looked for here.
_KINDS = ("service", "scope", "socket")
#: Bytes of a process's name (TASK_COMM_LEN without its end).
_COMM = 15
#: A container of systemd's: `systemd-*` would have it.
_ANYBODYS = "systemd-nspawn@*"
#: Programs of root's processes, as their files are called.
_PROGRAMS = frozenset(name for _, _, programs in _GROUPS for name in programs.split())
#: Programs of a user's that a desktop ends with. systemd has them in app.slice, with the applications (Ubuntu 24.04;
#: the session bus before systemd 248); what else a desktop cannot be without is in session.slice, Plasma's session
#: manager too.
_SESSION_PROGRAMS = frozenset(
    (
        *("gnome-session-binary", "gnome-session-service", "gnome-session-init-worker", "gnome-session-ctl"),
        *("dbus-daemon", "dbus-broker-launch", "dbus-broker", "gnome-shell", "kwin_wayland", "kwin_x11"),
        *("kwin_wayland_wrapper", "plasma_session", "ksmserver", "xfce4-session", "lxqt-session", "mate-session"),
        *("cinnamon-session-binary", "cosmic-session", "cosmic-comp", "sway", "Hyprland", "niri", "labwc", "weston"),
    )
)
#: What runs a script, whose name its process has.
_INTERPRETER = re.compile(r"(?:platform-)?python[\d.]*|perl[\d.]*")
#: _PROGRAMS as the kernel has them where the file may not be read.
_SHORT_PROGRAMS = frozenset(name[:_COMM] for name in _PROGRAMS)


@lru_cache(maxsize=4096)
def lost_with(unit: str) -> str:
    """What a machine loses with a unit of this name; "" if it can do without it."""
    stem, _, kind = unit.rpartition(".")
    if kind not in _KINDS or fnmatchcase(stem, _ANYBODYS):
        return ""
    return next((lost for lost, names, _ in _GROUPS if any(fnmatchcase(stem, name) for name in names.split())), "")


def refused(root: Path, path: Path) -> str:
    """Why a cgroup of the hierarchy mounted at ``root`` is no pod's by its place; "" if it may be one."""
    parts = path.relative_to(root).parts
    if len(parts) == 1 and parts[0] in _OF_THE_SYSTEM:
        return "is systemd's own"
    unit = next((part for part in parts if not part.endswith(".slice")), "")
    if unit == "init.scope" or lost_with(unit):
        return f"is of {unit}, which the machine runs on"
    return ""


def by_place(root: Path, path: Path, place: Place) -> str:
    """Why a pod is never evicted unless `services:` says so; "" if its place does not protect it."""
    if place.kind == MONITOR:
        return "it watches a container of a runtime"
    if place.parts[-1] == "init.scope" and (place.user is None or _MANAGER.fullmatch(place.parts[-2])):
        return "the service manager itself"
    if place.user is not None and "session.slice" in place.parts:  # systemd.special(7)
        return "in session.slice: a desktop session cannot be without it"
    if place.user is not None or place.kind == CONTAINER:
        return ""
    if place.namespace.startswith("user") and _SESSION.fullmatch(place.name):
        return "a login session: its leader is in it"
    if place.kind != PLAIN and (lost := lost_with(place.name)):
        return f"the machine runs on {place.name} ({lost})"
    if _MANAGER.fullmatch(place.name):
        return f"the machine runs on {place.name} (a user's services)"
    why = refused(root, path)
    return f"it {why}" if why else ""


def holds(path: Path) -> str:
    """The process in a cgroup, or below it, that the machine depends on; "" if there is none."""
    for pid in cgroup_procs.processes(path):
        if pid == 1:
            return "process 1"
        if name := daemon(pid):
            return f"the machine's {name} (process {pid})"
        if is_kernel_thread(pid):
            return f"a thread of the kernel (process {pid})"
    return ""


def daemon(pid: int) -> str:
    """The name of the machine's own daemon that a process is; "" if it is none."""
    with Process(pid) as process:
        exe = process.exe()
        by_comm = exe is None or _INTERPRETER.fullmatch(_name(exe)) is not None
        name = (process.comm() or "") if by_comm else _name(exe or "")
        programs = _SHORT_PROGRAMS if by_comm else _PROGRAMS
        if name not in programs or process.users() != {0} or not process.shares_pids():
            return ""
        if exe is None:
            return name  # without CAP_SYS_PTRACE its file is not readable; a wrong guess kills nothing
        return name if _runs_the_machines(process, exe) else ""


def by_session(path: Path) -> str:
    """Why a user's unit is never evicted unless `services:` says so: its first process runs the machine's own session
    manager. "" otherwise, whatever a user starts beside it or under its name.
    """
    first, since = 0, 1 << 64
    for pid in cgroup_procs.processes(path):
        with Process(pid) as process:
            if (started := process.started()) is not None and started < since:
                first, since = pid, started
    with Process(first) as process:
        exe = process.exe()
        if exe is None or _name(exe) not in _SESSION_PROGRAMS or not process.shares_pids():
            return ""
        its_own = _runs_the_machines(process, exe, shared=False)
        return f"{_name(exe)}: the desktop session ends with it" if its_own else ""


def _name(exe: str) -> str:
    return Path(exe.removesuffix(_DELETED)).name


def _runs_the_machines(process: Process, exe: str, shared: bool = True) -> bool:
    """Whether a program is a file that root alone can have put there. ``shared``: also in a sticky directory."""
    program, mounts = Path(exe.removesuffix(_DELETED)), process.namespace("mnt")
    if not _is_owned_by_root(program.parent, shared):
        return False
    if mounts is not None and mounts in (_own("mnt"), _own("mnt", 1)):
        return exe.endswith(_DELETED) or _is_roots_file(program)
    # Another mount namespace: a unit's own (PrivateTmp=) has the machine's files, a container's has others.
    return _is_same_file(process.pid, program)


def _is_owned_by_root(directory: Path, shared: bool) -> bool:
    """Whether root alone can have put a program there. (In a sticky one, as /nix/store is, others replace nothing.)"""
    try:
        for path in (directory, *directory.parents):
            status = os.stat(_outside(path))
            sticky = shared and status.st_mode & stat.S_ISVTX
            if status.st_uid not in (0, os.geteuid()) or (others(path, status) and not sticky):
                return False
    except OSError:
        return False
    return True


def _own(kind: str, pid: int | str = "self") -> str | None:
    """A namespace of this process or of process 1; None where the latter may not be asked."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None


def _outside(path: Path) -> Path:
    """A path of the machine's, also from within a container that shares its pid namespace."""
    if _own("mnt", 1) in (None, _own("mnt")):
        return path
    return Path("/proc/1/root", *path.parts[1:])


def _is_roots_file(program: Path) -> bool:
    with suppress(OSError):
        return not others(program, os.stat(_outside(program)))
    return False


def _is_same_file(pid: int, program: Path) -> bool:
    """Whether what the process runs is the machine's own file of this path, which root alone may change."""
    for directory in directories(pid):
        with suppress(OSError):
            runs, ours = os.stat(f"{directory}/exe"), os.stat(_outside(program))
            return os.path.samestat(runs, ours) and not others(program, ours)
    return False


def lowest_score(paths: Iterable[Path]) -> tuple[int | None, bool]:
    """The lowest oom_score_adj of the processes in cgroups and below them (a process without privileges may raise its
    own, not lower it), None without processes; and whether one is about to become another program.
    """
    lowest: int | None = None
    starting = False
    for pid in (pid for path in paths for pid in cgroup_procs.processes(path)):
        with Process(pid) as process:
            score = process.oom_score_adj()
            if score is None:
                continue
            lowest = score if lowest is None else min(lowest, score)
            starting = starting or (process.comm() or "").startswith(_STARTING)
    return lowest, starting

"""What a machine is started, reached and run by: by the names of root's units, and by root's programs.

One table, with what is lost in each row. A name counts only where root gave it, a program only as root's own file
(`monitor.pods.claims`). Whole names, or patterns for the instances of a unit and its helpers: what merely begins alike
(``dropbear-exporter.service``) is anybody's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

#: What a unit's name ends with where it is looked for here.
_KINDS = ("service", "scope", "socket")
#: Bytes of a process's name (TASK_COMM_LEN without its end).
_COMM = 15


@dataclass(frozen=True, slots=True)
class _Group:
    """``units`` are without their kind, in the patterns of a shell."""

    lost: str
    units: str
    programs: str = ""


_GROUPS = (
    _Group(
        "the service manager, its journal, devices and logins, D-Bus",
        "systemd-* dbus dbus-broker udev eudev elogind user-runtime-dir@*",
        "systemd systemd-journald systemd-logind systemd-udevd systemd-networkd systemd-resolved udevd elogind"
        " elogind-daemon dbus-daemon dbus-broker",
    ),
    _Group(
        "logins over the network, and the shells that are in its cgroup",
        "ssh ssh@* sshd sshd@* sshd-vsock@* sshd-unix-local@* dropbear dropbear@* tinysshd tinysshd@*",
        "sshd sshd-session sshd-auth dropbear dropbearmulti tinysshd",
    ),
    _Group(
        "logins at the console and the screen",
        "getty@* autovt@* serial-getty@* console-getty container-getty@* display-manager gdm gdm3 sddm lightdm lxdm xdm"
        " greetd ly ly@* polkit emergency rescue debug-shell",
        "login agetty mingetty sulogin",
    ),
    _Group(
        "who may log in: users and groups of a directory",
        "sssd sssd-autofs sssd-ifp sssd-kcm sssd-nss sssd-pac sssd-pam sssd-ssh sssd-sudo nslcd nscd winbind",
        "sssd sssd_be sssd_nss sssd_pam nslcd winbindd",
    ),
    _Group("the record of what happened", "rsyslog syslog-ng sysklogd auditd", "auditd"),
    _Group(
        "what keeps the machine from a reboot by a watchdog, or from being fenced by its cluster",
        "watchdog wd_keepalive watchdog-mux sbd sbd_remote corosync corosync-qdevice pacemaker pacemaker_remote"
        " pve-cluster pve-ha-lrm pve-ha-crm dlm sanlock wdmd rebootmgr locksmithd zincati update-engine"
        " watchdogd bmc-watchdog cman booth@* corosync-qnetd keepalived fence_virtd ovirt-ha-agent ovirt-ha-broker"
        " vdsmd oracle-ohasd gpfs vcs vxfen heartbeat xen-watchdog xhad",
        "watchdog wd_keepalive watchdog-mux sbd corosync pacemakerd pacemaker-fenced pacemaker_remoted pmxcfs"
        " dlm_controld sanlock wdmd watchdogd bmc-watchdog keepalived pve-ha-lrm pve-ha-crm ovirt-ha-agent ohasd.bin"
        " ocssd.bin cssdagent cssdmonitor mmfsd had xhad heartbeat xenwatchdogd",
    ),
    _Group(
        "disks over the network and those of several parts",
        "iscsid open-iscsi multipathd mdmon@* mdmonitor dm-event lvm2-lvmetad zfs-zed",
        "iscsid multipathd mdmon dmeventd",
    ),
    _Group(
        "a package manager at work: broken off, it leaves the system half installed",
        "packagekit apt-daily apt-daily-upgrade unattended-upgrades dnf-automatic dnf-automatic-* dnf-makecache"
        " dnf5daemon-server dnf-system-upgrade yum-cron zypp-refresh transactional-update rpm-ostreed"
        " rpm-ostreed-automatic bootc-fetch-apply-updates nixos-upgrade rauc mender-client mender-updated snapd"
        " flatpak-system-helper fwupd pamac-daemon dnf5-automatic dnf5-offline-transaction packagekit-offline-update"
        " yum-updatesd ostree-finalize-staged eos-updater swupd-update fwupd-refresh snapd.* apt-news esm-cache",
        "packagekitd dpkg apt apt-get aptitude rpm dnf5 dnf5daemon-server zypper pacman apk rpm-ostree snapd fwupd"
        " dnf dnf-3 dnf4 yum yum-cron microdnf tdnf unattended-upgrade emerge xbps-install opkg eopkg swupd bootc",
    ),
    _Group(
        "the network",
        "networking network ifup@* NetworkManager ModemManager connman iwd wpa_supplicant wpa_supplicant@*"
        " wpa_supplicant-*@* hostapd hostapd@* wicked wickedd wickedd-nanny wickedd-auto4 wickedd-dhcp4 wickedd-dhcp6"
        " pppd pppd@* ppp@* pppoe pppoe@* openvswitch-switch ovs-vswitchd ovsdb-server"
        " dhclient dhclient@* isc-dhclient isc-dhclient@* dhcpcd dhcpcd@* udhcpc udhcpc@* frr frr@*"
        " bird bird@* bird6 bird6@* quagga zebra bgpd ospfd ospf6d ripd ripngd isisd",
        "NetworkManager connmand iwd wpa_supplicant hostapd wickedd wickedd-nanny wickedd-auto4 wickedd-dhcp4"
        " wickedd-dhcp6 pppd ovs-vswitchd ovsdb-server dhclient dhcpcd watchfrr zebra bgpd ospfd bird bird6",
    ),
    _Group(
        "the private network by which the machine may be reached",
        "tailscaled openvpn openvpn@* openvpn-client@* openvpn-server@* openvpnas wg-quick@* wireguard-go@*"
        " strongswan strongswan-starter strongswan-swanctl ipsec zerotier-one netbird",
        "tailscaled openvpn wireguard-go charon charon-systemd zerotier-one netbird",
    ),
    _Group(
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
    _Group(
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
    _Group(
        "virtual machines and their manager",
        "libvirtd virtqemud virtnetworkd virtlogd virtlockd virtstoraged virtnodedevd virtinterfaced virtsecretd"
        " virtnwfilterd virtproxyd virtxend virtlxcd virtvboxd virtchd pvedaemon pveproxy"
        " pvescheduler pvestatd spiceproxy pve-firewall qmeventd pve-lxc-syscalld"
        " xenstored xenconsoled xenopsd-xc xapi message-switch xcp-networkd forkexecd",
        "xenstored oxenstored",
    ),
    _Group("outrace itself", "outrace outrace-* outrace@*"),
)
#: A container of systemd's: `systemd-*` would have it.
_ANYBODYS = "systemd-nspawn@*"
#: Programs of root's processes, as their files are called.
PROGRAMS = frozenset(name for group in _GROUPS for name in group.programs.split())
#: Programs of a user's that a desktop ends with. systemd has them in app.slice, with the applications (Ubuntu 24.04;
#: the session bus before systemd 248); what else a desktop cannot be without is in session.slice, Plasma's session
#: manager too.
SESSION_PROGRAMS = frozenset(
    (
        *("gnome-session-binary", "gnome-session-service", "gnome-session-init-worker", "gnome-session-ctl"),
        *("dbus-daemon", "dbus-broker-launch", "dbus-broker", "gnome-shell", "kwin_wayland", "kwin_x11"),
        *("kwin_wayland_wrapper", "plasma_session", "ksmserver", "xfce4-session", "lxqt-session", "mate-session"),
        *("cinnamon-session-binary", "cosmic-session", "cosmic-comp", "sway", "Hyprland", "niri", "labwc", "weston"),
    )
)
#: What runs a script, whose name its process has.
INTERPRETER = re.compile(r"(?:platform-)?python[\d.]*|perl[\d.]*")
#: PROGRAMS as the kernel has them where the file may not be read.
SHORT_PROGRAMS = frozenset(name[:_COMM] for name in PROGRAMS)


@lru_cache(maxsize=4096)
def lost_with(unit: str) -> str:
    """What a machine loses with a unit of this name; "" if it can do without it."""
    stem, _, kind = unit.rpartition(".")
    if kind not in _KINDS or fnmatchcase(stem, _ANYBODYS):
        return ""
    return next((g.lost for g in _GROUPS if any(fnmatchcase(stem, name) for name in g.units.split())), "")

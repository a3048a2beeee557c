"""Units that a machine is reached and run by are protected by their names; similar names are not."""

from pathlib import Path

from monitor.pods import claims
from monitor.pods.units import classify

ROOT = Path("/sys/fs/cgroup")


def why(unit: str, above: str = "system.slice") -> str:
    """Why a unit is not evicted, by its place alone."""
    path = f"{above}/{unit}"
    return claims.by_place(ROOT, ROOT / path, classify(path.split("/")))


#: One of each kind and form of a name: plain, a template, an instance, a snap's, with a dash or a dot in it.
MACHINES = """
    ssh ssh@3-10.0.0.1:22-10.0.0.2:5000 dropbear dropbear@0 getty@tty1 serial-getty@ttyS0 gdm emergency sssd-pam
    NetworkManager wpa_supplicant-wired@eth0 ppp@dsl openvpn-server@s wg-quick@wg0 tailscaled amazon-ssm-agent
    snap.amazon-ssm-agent.amazon-ssm-agent hyperv-daemons.hv-kvp-daemon qemu-ga cloud-init-local docker
    snap.microk8s.daemon-kubelite snap.lxd.daemon lsfd pbs_mom pveproxy frr virtqemud systemd-journald dbus outrace
    watchdog watchdog-mux sbd corosync pacemaker auditd multipathd mdmon@md0 packagekit apt-daily-upgrade
    unattended-upgrades dnf-automatic-install snapd fwupd rpm-ostreed bmc-watchdog keepalived snapd.seeded booth@a"""
SIMILAR = """sshd-exporter dropbear-exporter dropbears my-dropbear systemd-nspawn@box virtual podmanager
    dhclient-exporter outraced connmand-exporter nginx @ openvpn-exporter lxd-ui lxcfsd snap.lxd snap.lxd.daemon.evil
    google-guest-agents cloud-configurator pppdump rescue-me winbinder wickeder snapdx gpfs-exporter
    watchdogs watchdog-exporter auditdash packagekit-ui apt-cacher snapd-desktop dnf-automaton corosync-exporter"""


def test_units_of_the_machines_own() -> None:
    for unit in MACHINES.split():
        for above in ("system.slice", "system.slice/system-x.slice"):
            assert f"the machine runs on {unit}.service" in why(f"{unit}.service", above), unit
    assert "(a package manager at work: " in why("apt-daily-upgrade.service")


def test_what_has_a_similar_name_is_not() -> None:
    assert {why(f"{unit}.service") for unit in SIMILAR.split()} == {""}


def test_a_name_in_a_users_manager_protects_nothing() -> None:
    for unit in ("ssh.service", "dropbear@0.service", "dbus.service", "sssd.service", "lxd.service", "rescue.service"):
        assert why(unit, "user.slice/user-1000.slice/user@1000.service/app.slice") == ""

"""What a machine is reached and run by is protected by its unit's name, and by its program; what has a similar name is
not.
"""

from pathlib import Path

import pytest

from monitor.pods import protected
from monitor.pods.units import Place, classify

ROOT = Path("/sys/fs/cgroup")


def why(unit: str, above: str = "system.slice") -> str:
    """Why a unit is not evicted, by its place alone."""
    path = f"{above}/{unit}"
    place = classify(path.split("/"))
    assert isinstance(place, Place)
    return protected.by_place(ROOT, ROOT / path, place)


NETWORK_LOGINS = "ssh sshd ssh@3-10.0.0.1:22-10.0.0.2:5000 sshd-unix-local@1 dropbear dropbear@0 tinysshd@1"
CONSOLES = """getty@tty1 autovt@tty2 serial-getty@ttyS0 console-getty container-getty@0 gdm ly@tty2 emergency rescue
    debug-shell"""
DIRECTORIES = "sssd sssd-pam sssd-kcm nslcd nscd winbind"
NETWORK = """NetworkManager wpa_supplicant-wired@eth0 wickedd wickedd-nanny pppd ppp@dsl ovs-vswitchd ovsdb-server
    hostapd hostapd@wlan0 connman iwd"""
PRIVATE_NETWORKS = "tailscaled openvpn openvpn@office openvpn-client@office openvpn-server@s wg-quick@wg0 strongswan"
AGENTS = """amazon-ssm-agent snap.amazon-ssm-agent.amazon-ssm-agent google-guest-agent google-guest-agent-manager
    waagent walinuxagent qemu-ga qemu-guest-agent open-vm-tools vmtoolsd vgauth vgauthd hv-kvp-daemon hypervkvpd
    hv_vss_daemon hyperv-daemons.hv-kvp-daemon xe-daemon cloud-init cloud-init-local cloud-init-main cloud-config
    cloud-final"""
RUNTIMES = """docker containerd podman snap.microk8s.daemon-kubelite snap.docker.dockerd snap.lxd.daemon lxd lxcfs incus
    virtqemud"""
OTHERS = "systemd-journald dbus rsyslog outrace"
SIMILAR = """sshd-exporter dropbear-exporter dropbears my-dropbear systemd-nspawn@box virtual podmanager
    dhclient-exporter outraced connmand-exporter nginx @ openvpn-exporter lxd-ui lxcfsd snap.lxd snap.lxd.daemon.evil
    tailscaled-exporter google-guest-agents cloud-init-ui cloud-configurator pppdump rescue-me emergency-mailer
    winbinder wickeder sssd-exporter"""


@pytest.mark.parametrize(
    "unit",
    " ".join((NETWORK_LOGINS, CONSOLES, DIRECTORIES, NETWORK, PRIVATE_NETWORKS, AGENTS, RUNTIMES, OTHERS)).split(),
)
def test_units_of_the_machines_own(unit: str) -> None:
    assert f"the machine runs on {unit}.service" in why(f"{unit}.service")
    assert f"the machine runs on {unit}.service" in why(f"system-x.slice/{unit}.service")


@pytest.mark.parametrize("unit", SIMILAR.split())
def test_what_has_a_similar_name_is_not(unit: str) -> None:
    assert why(f"{unit}.service") == ""


def test_a_name_in_a_users_manager_protects_nothing() -> None:
    for unit in ("ssh.service", "dropbear@0.service", "dbus.service", "sssd.service", "lxd.service", "rescue.service"):
        assert why(unit, "user.slice/user-1000.slice/user@1000.service/app.slice") == ""

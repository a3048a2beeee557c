"""What a machine is reached and run by is protected by its unit's name, and by its program; what has a similar name is
not.
"""

from pathlib import Path

import pytest

from monitor.pods import machine, protected
from monitor.pods.units import Place, classify

ROOT = Path("/sys/fs/cgroup")


def why(unit: str, above: str = "system.slice") -> str:
    """Why a unit is not evicted, by its place alone."""
    path = f"{above}/{unit}"
    place = classify(path.split("/"))
    assert isinstance(place, Place)
    return protected.by_place(ROOT, ROOT / path, place)


NETWORK_LOGINS = "ssh sshd ssh@3-10.0.0.1:22-10.0.0.2:5000 sshd-unix-local@1 dropbear dropbear@0 tinysshd@1"
OTHERS = """systemd-journald dbus getty@tty1 gdm rsyslog NetworkManager wpa_supplicant-wired@eth0 docker containerd
    podman snap.microk8s.daemon-kubelite virtqemud cloud-init outrace"""
SIMILAR = """sshd-exporter dropbear-exporter dropbears my-dropbear systemd-nspawn@box virtual podmanager
    dhclient-exporter outraced connmand-exporter nginx @"""


@pytest.mark.parametrize("unit", f"{NETWORK_LOGINS} {OTHERS}".split())
def test_units_of_the_machines_own(unit: str) -> None:
    assert f"the machine runs on {unit}.service" in why(f"{unit}.service")
    assert f"the machine runs on {unit}.service" in why(f"system-x.slice/{unit}.service")


@pytest.mark.parametrize("program", ["dropbear", "dropbearmulti", "sshd-session", "tinysshd"])
def test_programs_of_the_machines_own(program: str) -> None:
    assert program in machine.PROGRAMS
    assert program[:15] in machine.SHORT_PROGRAMS


@pytest.mark.parametrize("unit", SIMILAR.split())
def test_what_has_a_similar_name_is_not(unit: str) -> None:
    assert why(f"{unit}.service") == ""


def test_a_name_in_a_users_manager_protects_nothing() -> None:
    for unit in ("ssh.service", "dropbear.service", "dropbear@0.service", "dbus.service"):
        assert why(unit, "user.slice/user-1000.slice/user@1000.service/app.slice") == ""

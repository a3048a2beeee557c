"""Services, sessions and scopes in a real tree of cgroups, made as systemd makes its own."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.procfs import Process
from monitor.pods import services, units
from monitor.policy.resources import pod_request
from tests.pods.programs import running
from tests.pods.unit_tree import GI, ID, MANAGER, MI, USER, Machine, again, pid_of, pods
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.newest]


def test_services_sessions_and_scopes_are_pods(machine: Machine) -> None:
    may = ["system.slice/nginx.service", f"{MANAGER}/app.slice/app-fire\\x2dfox.scope", "batch"]
    never = {
        "system.slice/ssh.service": "the machine runs on",
        "system.slice/system-getty.slice/getty@tty1.service": "the machine runs on",
        "user.slice/user-1000.slice/session-3.scope": "a login session",
        f"{MANAGER}/init.scope": "the service manager",
        f"{MANAGER}/session.slice/shell.service": "a desktop session",
    }
    machine.start(*may, *never)
    known = machine.looked()
    free = {name for name, pod in known.items() if not pod.taken_critical}
    assert free == {"system/nginx.service", "user-1000/app-fire\\x2dfox.scope", "cgroup/batch"}
    reasons = {name.split("/")[1]: pod.taken_critical for name, pod in known.items() if pod.taken_critical}
    assert len(reasons) == len(never)
    for unit, why in never.items():
        assert why in reasons[unit.split("/")[-1]]


def test_a_unit_that_comes_and_one_that_goes(machine: Machine) -> None:
    gone = machine.start("system.slice/a.service")
    with machine.source() as found:
        found.poll()
        machine.start("new.slice/new-b.slice/b.service")
        until(lambda: found.poll() and "new/b.service" in pods(found), "the unit")
        assert set(pods(found)) == {"system/a.service", "new/b.service"}
        pid = pid_of(gone)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        gone.rmdir()
        until(lambda: found.poll() and set(pods(found)) == {"new/b.service"}, "its end")


def test_what_root_wrote_is_request_and_limit(machine: Machine) -> None:
    path = machine.start("system.slice/db.service")
    machine.request(path, 64 * MI)
    with machine.source() as found:
        found.poll()
        assert pod_request(pods(found)["system/db.service"], "memory").value == 64 * MI
        cgroupfs.set_limit(path, 64 * MI)
        # The file's event is enough.
        until(lambda: found.poll() and pods(found)["system/db.service"].qos_class_status == "Guaranteed", "the limit")


def test_a_user_keeps_no_more_than_root_keeps_for_him(machine: Machine) -> None:
    path = machine.start(f"{MANAGER}/app.slice/greedy.service")
    os.chown(machine.request(path, 8 * GI), USER, USER)
    os.chown(machine.request(path.parent, 8 * GI), USER, USER)
    if machine.hierarchy.version == 2:
        os.chown(path / "memory.min", USER, USER)
        os.chown(path.parent / "memory.min", USER, USER)
    assert pod_request(machine.looked()["user-1000/greedy.service"], "memory").value == 0
    machine.request(machine.path / MANAGER, 32 * MI)
    assert pod_request(machine.looked()["user-1000/greedy.service"], "memory").value == 32 * MI


def test_managed_oom_preference_is_of_root(machine: Machine) -> None:
    omitted, avoided = machine.start("system.slice/o.service"), machine.start("system.slice/a.service")
    users = machine.start(f"{MANAGER}/app.slice/u.service")
    try:
        os.setxattr(omitted, "user.oomd_omit", b"1")
        os.setxattr(avoided, "user.oomd_avoid", b"1")
        os.setxattr(users, "user.oomd_omit", b"1")
    except OSError as error:
        pytest.skip(f"this kernel has no user.* attributes of a cgroup of this hierarchy: {error.strerror}")
    os.chown(users, USER, USER)
    known = machine.looked()
    assert known["system/o.service"].taken_critical == "ManagedOOMPreference=omit"
    assert known["system/a.service"].priority == 10**9
    assert known["user-1000/u.service"].taken_critical == ""


def test_the_score_is_the_lowest_and_not_the_one_of_a_mark(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    path = machine.start("system.slice/a.service", "system.slice/a.service")
    first, second = map(int, (path / "cgroup.procs").read_text().split())
    Path(f"/proc/{first}/oom_score_adj").write_text("300")
    Path(f"/proc/{second}/oom_score_adj").write_text("400")
    monkeypatch.setattr(services, "RESCAN_S", 0.0)
    with machine.source() as found:
        found.poll()
        assert pods(found)["system/a.service"].priority == -300
        for pid in (first, second):  # as the guide of the OOM killer marks a victim
            Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
        assert again(found)["system/a.service"].priority == -300
        # Lowering it takes CAP_SYS_RESOURCE, which a machine of tests may not have: the one fake.
        monkeypatch.setattr(Process, "oom_score_adj", lambda self: -1000 if self.pid == second else 300)
        again(found)
        assert "OOMScoreAdjust=-1000" in pods(found)["system/a.service"].taken_critical


def test_a_service_is_not_judged_by_the_process_that_starts_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd's child is in the cgroup already, with its own score, and calls itself (name) until it executes."""
    pid = pid_of(machine.start("system.slice/a.service"))
    name = "(a)"
    monkeypatch.setattr(Process, "comm", lambda self: name if self.pid == pid else "sleep")
    with machine.source() as found:
        found.poll()
        assert "being started" in pods(found)["system/a.service"].taken_critical
        name = "a"
        assert again(found)["system/a.service"].taken_critical == ""


@pytest.mark.parametrize("name", ["runc", "(a)", "podman"])
def test_a_unit_of_a_user_is_judged_whatever_its_processes_are_called(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Else a user that moves to a new unit every 9 s is never evicted."""
    machine.start(f"{MANAGER}/app.slice/a.scope")
    monkeypatch.setattr(Process, "comm", lambda _: name)
    assert machine.looked()["user-1000/a.scope"].taken_critical == ""


def test_no_rule_for_a_service_of_the_machine_is_for_a_users_unit_whose_name_holds_its_namespace(
    machine: Machine,
) -> None:
    machine.start(f"{MANAGER}/app.slice/system\\x2fdb.service", "system.slice/db.service")
    known = machine.looked({"system/db.service": {"never": True}})
    ranked = {pod.namespace: pod.taken_critical for pod in known.values()}
    assert ranked == {"user-1000": "", "system": "services: system/db.service: never"}


def test_who_holds_outrace_is_never_evicted(machine: Machine) -> None:
    pid = pid_of(machine.start("system.slice/monitor.service"))
    known = machine.looked({"*": {"never": False}}, spared=(pid,))
    assert "outrace itself" in known["system/monitor.service"].taken_critical


def test_two_of_one_name_and_too_many_of_one_user(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_MOST_OF_USER", 3)  # the slice is one
    of_manager = (f"{MANAGER}/app.slice/{name}" for name in ("session-3.scope", "t.scope", "u.scope"))
    machine.start("user.slice/user-1000.slice/session-3.scope", *of_manager)
    with machine.source() as found:
        found.poll()
        known = pods(found)
        assert found.problems == ("user 1000 has more than 3 services, scopes and slices: the others are not watched",)
    assert known["user-1000/session-3.scope"].taken_critical
    assert known["user-1000/session-3.scope~2"].taken_critical == ""
    assert len(known) == 3


@pytest.mark.parametrize("shape", ["side by side", "one in the other"])
def test_a_users_slices_are_neither_walked_nor_watched_without_end(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """10,000 of them were 10,000 watches, and half a second for every look at the machine."""
    monkeypatch.setattr(services, "_MOST_OF_USER", 20)
    machine.start("system.slice/a.service", "user.slice/user-1001.slice/user@1001.service/app.slice/other.service")
    for number in range(300):
        name = f"s{number}.slice" if shape == "side by side" else f"{number % 15}.slice/{number}.slice"
        cgroupfs.make(machine.path / MANAGER / name)
    looked: list[tuple[str, ...]] = []
    real = units.classify

    def classify(parts: tuple[str, ...]) -> object:
        looked.append(parts)
        return real(parts)

    monkeypatch.setattr(units, "classify", classify)
    with machine.source() as found:
        found.poll()
        assert found.problems == ("user 1000 has more than 20 services, scopes and slices: the others are not watched",)
        assert set(pods(found)) == {"system/a.service", "user-1001/other.service"}
        assert len([path for path in found._watcher._watches if "user@1000" in str(path)]) == 21  # with the manager
        looked.clear()
        again(found)
        assert len(looked) < 40


@pytest.mark.parametrize(
    "hog",
    [
        *("kubepods", "kubepods.slice/hog.service", "_kubepods.slice/hog.service", "a.swap", "x.slice/hog.timer"),
        *("app.slice/app-kubepods.slice/hog.service", "app.slice/hog.socket"),
        *("hog.mount", "app.slice/init.scope", "_init.scope", "app.slice/hog.slice", 10 * "a.slice/" + "hog.service"),
    ],
)
def test_a_user_hides_no_cgroup_by_a_name_that_is_passed_over(machine: Machine, hog: str) -> None:
    """Nor in the depth: others would go for what it takes."""
    machine.start(f"{MANAGER}/{hog}")
    (pod,) = machine.looked().values()
    assert (pod.namespace, pod.taken_critical) == ("user-1000", "")


def test_a_kubelet_that_came_later_is_reported(machine: Machine) -> None:
    machine.start(f"kubepods/burstable/pod5c2b2da2-119f-4fa8-8801-c79f0fa869aa/{ID}")
    with machine.source() as found:
        found.poll()
        assert found.pods == {}
        (problem,) = found.problems
    assert "start outrace again, --pods auto" in problem


def test_a_unit_that_goes_while_it_is_read_costs_no_other(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the read of a file and the look at whose it is: that ended the scan, and the thread that makes it."""
    gone, _ = machine.start("system.slice/gone.service"), machine.start("system.slice/here.service")
    real = services._protection

    def protection(path: Path, version: int) -> tuple[int, int]:
        if path == gone:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return real(path, version)

    monkeypatch.setattr(services, "_protection", protection)
    assert set(machine.looked()) == {"system/here.service"}


UNIT = f"{MANAGER}/app.slice/app-gnome\\x2dsession\\x2dmanager.slice/gnome-session-manager@ubuntu.service"
NAME = "user-1000/gnome-session-manager@ubuntu.service"


def test_gnomes_session_manager_stays(machine: Machine, programs: Path) -> None:
    """As Ubuntu 24.04 has it: in app.slice, where the applications are."""
    path = cgroupfs.make(machine.path / UNIT)
    with running(programs / "gnome-session-binary", path, USER):
        assert machine.looked()[NAME].taken_critical == "gnome-session-binary: the desktop session ends with it"
        with running(Path("/bin/dash"), path, USER):  # what it starts, until that has a scope
            assert machine.looked()[NAME].taken_critical
        assert machine.looked({"user-1000/gnome-session*": {"never": False}})[NAME].taken_critical == ""


@pytest.mark.parametrize("bus", ["dbus-daemon", "dbus-broker-launch"])
def test_the_session_bus_among_the_applications_stays(machine: Machine, programs: Path, bus: str) -> None:
    """As systemd has it before 248. The unit's name alone is anybody's."""
    path = cgroupfs.make(machine.path / f"{MANAGER}/app.slice/dbus.service")
    with running(programs / bus, path, USER):
        assert machine.looked()["user-1000/dbus.service"].taken_critical == f"{bus}: the desktop session ends with it"
    with running(Path("/bin/dash"), path, USER):
        assert machine.looked()["user-1000/dbus.service"].taken_critical == ""


def test_a_package_manager_at_work_in_another_unit_stays(machine: Machine, programs: Path) -> None:
    path = cgroupfs.make(machine.path / "system.slice/ansible.service")
    with running(programs / "dpkg", path) as pid:
        why = f"it holds the machine's dpkg (process {pid})"
        assert machine.looked()["system/ansible.service"].taken_critical == why
    with running(Path("/bin/dash"), path), machine.source() as found:
        found.poll()
        assert pods(found)["system/ansible.service"].taken_critical == ""
        with running(programs / "dpkg", path):  # it begins later
            assert again(found)["system/ansible.service"].taken_critical == ""
            assert found.doubt(next(iter(found.pods)))
            found.poll()
            assert pods(found)["system/ansible.service"].taken_critical.startswith("it holds the machine's dpkg")


@pytest.mark.parametrize("lack", ["all but the name", "program", "place", "sticky", "owner", "first"])
def test_who_only_passes_for_the_session_manager_goes(machine: Machine, programs: Path, lack: str) -> None:
    path = cgroupfs.make(machine.path / UNIT)
    program = programs / ("sh" if lack in ("all but the name", "program") else "gnome-session-binary")
    if lack in ("place", "sticky"):  # where everybody writes
        program = programs / "open/gnome-session-binary"
        program.parent.mkdir()
        program.parent.chmod(0o777 if lack == "place" else 0o1777)
    shutil.copy("/bin/dash", program)
    if lack in ("owner", "sticky"):
        os.chown(program, USER, USER)
    with ExitStack() as stack:
        if lack == "first":
            stack.enter_context(running(Path("/bin/dash"), path, USER))
        stack.enter_context(running(program, path, USER, "" if lack == "all but the name" else "gnome-session-b"))
        if lack == "sticky":
            program.unlink()  # a file that is gone is root's no more than its place
        assert machine.looked()[NAME].taken_critical == ""


#: Names of units that were, or look, the same as the next one.
TWINS = (
    *(b"a\x1b.scope", b"a\\x1b.scope", b"a\\x5cx1b.scope"),
    *(b"b\xff.scope", b"b\\xff.scope", "b\xff.scope".encode()),
    *(b"c\x85.scope", "c\x85.scope".encode(), b"c\\u0085.scope"),
    *(b"d.scope", b"d.scope ", b"d.scope  ", b"d.scope\t", b" d.scope", b"_d.scope", b"d.scope~2"),
    *(b"e (deleted)", b"e", b"f,task=x", b"f"),
)


@pytest.mark.parametrize("above", [f"{MANAGER}/app.slice", "system.slice"])
def test_every_twin_is_a_pod_of_its_own(machine: Machine, above: str) -> None:
    made = {machine.start(f"{above}/{os.fsdecode(name)}") for name in TWINS}
    with machine.source() as found:
        change = found.poll()
        assert change.problems == []
        assert {one.cgroup for one in found.pods.values()} == made
        shown = [(one.pod.namespace, one.pod.name) for one in found.pods.values()]
        assert len(set(shown)) == len(TWINS), "metrics, logs and commands tell them apart"
        assert all(name.isprintable() for pair in shown for name in pair)
        before = set(found.pods)
        again(found)
        assert set(found.pods) == before, "and it is the same one at every look"

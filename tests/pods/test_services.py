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
from tests.pods.programs import programs as programs
from tests.pods.programs import running
from tests.pods.unit_tree import GI, ID, MANAGER, MI, USER, Start, Tree, again, looked, pods, source, write_request
from tests.pods.unit_tree import start as start
from tests.pods.unit_tree import tree as tree
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.newest]


def test_services_sessions_and_scopes_are_pods(tree: Tree, start: Start) -> None:
    may = ["system.slice/nginx.service", f"{MANAGER}/app.slice/app-fire\\x2dfox.scope", "batch"]
    never = {
        "system.slice/ssh.service": "the machine runs on",
        "system.slice/system-getty.slice/getty@tty1.service": "the machine runs on",
        "user.slice/user-1000.slice/session-3.scope": "a login session",
        f"{MANAGER}/init.scope": "the service manager",
        f"{MANAGER}/session.slice/shell.service": "a desktop session",
    }
    for unit in (*may, *never):
        start(unit)
    known = looked(tree)
    free = {name for name, pod in known.items() if not pod.taken_critical}
    assert free == {"system/nginx.service", "user-1000/app-fire\\x2dfox.scope", "cgroup/batch"}
    reasons = {name.split("/")[1]: pod.taken_critical for name, pod in known.items() if pod.taken_critical}
    assert len(reasons) == len(never)
    for unit, why in never.items():
        assert why in reasons[unit.split("/")[-1]]


def test_a_unit_that_comes_and_one_that_goes(tree: Tree, start: Start) -> None:
    start("system.slice/a.service")
    with source(tree) as found:
        found.poll()
        start("new.slice/new-b.slice/b.service")
        until(lambda: found.poll() and "new/b.service" in pods(found), "the unit")
        assert set(pods(found)) == {"system/a.service", "new/b.service"}
        (pid,) = (tree[1] / "system.slice/a.service/cgroup.procs").read_text().split()
        os.kill(int(pid), 9)
        os.waitpid(int(pid), 0)
        (tree[1] / "system.slice/a.service").rmdir()
        until(lambda: found.poll() and set(pods(found)) == {"new/b.service"}, "its end")


def test_what_root_wrote_is_request_and_limit(tree: Tree, start: Start) -> None:
    hierarchy, _ = tree
    path = start("system.slice/db.service")
    write_request(hierarchy, path, 64 * MI)
    with source(tree) as found:
        found.poll()
        assert pod_request(pods(found)["system/db.service"], "memory").value == 64 * MI
        cgroupfs.set_limit(path, 64 * MI)
        # The file's event is enough.
        until(lambda: found.poll() and pods(found)["system/db.service"].qos_class_status == "Guaranteed", "the limit")


def test_a_user_keeps_no_more_than_root_keeps_for_him(tree: Tree, start: Start) -> None:
    hierarchy, node = tree
    path = start(f"{MANAGER}/app.slice/greedy.service")
    os.chown(write_request(hierarchy, path, 8 * GI), USER, USER)
    os.chown(write_request(hierarchy, path.parent, 8 * GI), USER, USER)
    if hierarchy.version == 2:
        os.chown(path / "memory.min", USER, USER)
        os.chown(path.parent / "memory.min", USER, USER)
    assert pod_request(looked(tree)["user-1000/greedy.service"], "memory").value == 0
    write_request(hierarchy, node / MANAGER, 32 * MI)
    assert pod_request(looked(tree)["user-1000/greedy.service"], "memory").value == 32 * MI


def test_managed_oom_preference_is_of_root(tree: Tree, start: Start) -> None:
    omitted, avoided = start("system.slice/o.service"), start("system.slice/a.service")
    users = start(f"{MANAGER}/app.slice/u.service")
    try:
        os.setxattr(omitted, "user.oomd_omit", b"1")
        os.setxattr(avoided, "user.oomd_avoid", b"1")
        os.setxattr(users, "user.oomd_omit", b"1")
    except OSError as error:
        pytest.skip(f"this kernel has no user.* attributes of a cgroup of this hierarchy: {error.strerror}")
    os.chown(users, USER, USER)
    known = looked(tree)
    assert known["system/o.service"].taken_critical == "ManagedOOMPreference=omit"
    assert known["system/a.service"].priority == 10**9
    assert known["user-1000/u.service"].taken_critical == ""


def test_the_score_is_the_lowest_and_not_the_one_of_a_mark(
    tree: Tree, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = start("system.slice/a.service")
    start("system.slice/a.service")
    first, second = map(int, (path / "cgroup.procs").read_text().split())
    Path(f"/proc/{first}/oom_score_adj").write_text("300")
    Path(f"/proc/{second}/oom_score_adj").write_text("400")
    monkeypatch.setattr(services, "RESCAN_S", 0.0)
    with source(tree) as found:
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
    tree: Tree, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd's child is in the cgroup already, with its own score, and calls itself (name) until it executes."""
    path = start("system.slice/a.service")
    pid = int((path / "cgroup.procs").read_text())
    name = "(a)"
    monkeypatch.setattr(Process, "comm", lambda self: name if self.pid == pid else "sleep")
    with source(tree) as found:
        found.poll()
        assert "being started" in pods(found)["system/a.service"].taken_critical
        name = "a"
        assert again(found)["system/a.service"].taken_critical == ""


@pytest.mark.parametrize("name", ["runc", "(a)", "podman"])
def test_a_unit_of_a_user_is_judged_whatever_its_processes_are_called(
    tree: Tree, start: Start, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Else a user that moves to a new unit every 9 s is never evicted."""
    start("user.slice/user-1000.slice/user@1000.service/app.slice/a.scope")
    monkeypatch.setattr(Process, "comm", lambda _: name)
    assert looked(tree)["user-1000/a.scope"].taken_critical == ""


def test_no_rule_for_a_service_of_the_machine_is_for_a_users_unit_whose_name_holds_its_namespace(
    tree: Tree, start: Start
) -> None:
    start("user.slice/user-1000.slice/user@1000.service/app.slice/system\\x2fdb.service")
    start("system.slice/db.service")
    known = looked(tree, {"system/db.service": {"never": True}})
    ranked = {pod.namespace: pod.taken_critical for pod in known.values()}
    assert ranked == {"user-1000": "", "system": "services: system/db.service: never"}


def test_who_holds_outrace_is_never_evicted(tree: Tree, start: Start) -> None:
    path = start("system.slice/monitor.service")
    pid = int((path / "cgroup.procs").read_text())
    known = looked(tree, {"*": {"never": False}}, spared=(pid,))
    assert "outrace itself" in known["system/monitor.service"].taken_critical


def test_two_of_one_name_and_too_many_of_one_user(tree: Tree, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_MOST_OF_USER", 3)  # the slice is one
    start("user.slice/user-1000.slice/session-3.scope")
    for name in ("session-3.scope", "t.scope", "u.scope"):
        start(f"{MANAGER}/app.slice/{name}")
    with source(tree) as found:
        found.poll()
        known = pods(found)
        assert found.problems == ("user 1000 has more than 3 services, scopes and slices: the others are not watched",)
    assert known["user-1000/session-3.scope"].taken_critical
    assert known["user-1000/session-3.scope~2"].taken_critical == ""
    assert len(known) == 3


@pytest.mark.parametrize("shape", ["side by side", "one in the other"])
def test_a_users_slices_are_neither_walked_nor_watched_without_end(
    tree: Tree, start: Start, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """10,000 of them were 10,000 watches, and half a second for every look at the machine."""
    monkeypatch.setattr(services, "_MOST_OF_USER", 20)
    start("system.slice/a.service")
    start("user.slice/user-1001.slice/user@1001.service/app.slice/other.service")
    for number in range(300):
        name = f"s{number}.slice" if shape == "side by side" else f"{number % 15}.slice/{number}.slice"
        cgroupfs.make(tree[1] / MANAGER / name)
    looked: list[tuple[str, ...]] = []
    real = units.classify

    def classify(parts: tuple[str, ...]) -> object:
        looked.append(parts)
        return real(parts)

    monkeypatch.setattr(units, "classify", classify)
    with source(tree) as found:
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
def test_a_user_hides_no_cgroup_by_a_name_that_is_passed_over(tree: Tree, start: Start, hog: str) -> None:
    """Nor in the depth: others would go for what it takes."""
    start(f"{MANAGER}/{hog}")
    (pod,) = looked(tree).values()
    assert (pod.namespace, pod.taken_critical) == ("user-1000", "")


def test_a_kubelet_that_came_later_is_reported(tree: Tree, start: Start) -> None:
    start(f"kubepods/burstable/pod5c2b2da2-119f-4fa8-8801-c79f0fa869aa/{ID}")
    with source(tree) as found:
        found.poll()
        assert found.pods == {}
        (problem,) = found.problems
    assert "start outrace again, --pods auto" in problem


def test_a_unit_that_goes_while_it_is_read_costs_no_other(
    tree: Tree, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the read of a file and the look at whose it is: that ended the scan, and the thread that makes it."""
    gone, _ = start("system.slice/gone.service"), start("system.slice/here.service")
    real = services._protection

    def protection(path: Path, version: int) -> tuple[int, int]:
        if path == gone:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return real(path, version)

    monkeypatch.setattr(services, "_protection", protection)
    assert set(looked(tree)) == {"system/here.service"}


UNIT = f"{MANAGER}/app.slice/app-gnome\\x2dsession\\x2dmanager.slice/gnome-session-manager@ubuntu.service"
NAME = "user-1000/gnome-session-manager@ubuntu.service"


def test_gnomes_session_manager_stays(tree: Tree, programs: Path) -> None:
    """As Ubuntu 24.04 has it: in app.slice, where the applications are."""
    shutil.copy("/bin/dash", programs / "gnome-session-binary")
    path = cgroupfs.make(tree[1] / UNIT)
    with running(programs / "gnome-session-binary", path, USER):
        assert looked(tree)[NAME].taken_critical == "gnome-session-binary: the desktop session ends with it"
        with running(Path("/bin/dash"), path, USER):  # what it starts, until that has a scope
            assert looked(tree)[NAME].taken_critical
        assert looked(tree, {"user-1000/gnome-session*": {"never": False}})[NAME].taken_critical == ""


@pytest.mark.parametrize("bus", ["dbus-daemon", "dbus-broker-launch"])
def test_the_session_bus_among_the_applications_stays(tree: Tree, programs: Path, bus: str) -> None:
    """As systemd has it before 248. The unit's name alone is anybody's."""
    shutil.copy("/bin/dash", programs / bus)
    path = cgroupfs.make(tree[1] / f"{MANAGER}/app.slice/dbus.service")
    with running(programs / bus, path, USER):
        assert looked(tree)["user-1000/dbus.service"].taken_critical == f"{bus}: the desktop session ends with it"
    with running(Path("/bin/dash"), path, USER):
        assert looked(tree)["user-1000/dbus.service"].taken_critical == ""


def test_a_package_manager_at_work_in_another_unit_stays(tree: Tree, programs: Path) -> None:
    shutil.copy("/bin/dash", programs / "dpkg")
    path = cgroupfs.make(tree[1] / "system.slice/ansible.service")
    with running(programs / "dpkg", path) as pid:
        why = f"it holds the machine's dpkg (process {pid})"
        assert looked(tree)["system/ansible.service"].taken_critical == why
    with running(Path("/bin/dash"), path), source(tree) as found:
        found.poll()
        assert pods(found)["system/ansible.service"].taken_critical == ""
        with running(programs / "dpkg", path):  # it begins later
            assert again(found)["system/ansible.service"].taken_critical == ""
            assert found.doubt(next(iter(found.pods)))
            found.poll()
            assert pods(found)["system/ansible.service"].taken_critical.startswith("it holds the machine's dpkg")


@pytest.mark.parametrize("lack", ["all but the name", "program", "place", "sticky", "owner", "first"])
def test_who_only_passes_for_the_session_manager_goes(tree: Tree, programs: Path, lack: str) -> None:
    path = cgroupfs.make(tree[1] / UNIT)
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
        assert looked(tree)[NAME].taken_critical == ""

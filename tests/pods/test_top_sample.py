"""What `outrace top` knows beside memory figures: growth, what memory is made of, the kernel's victim, incidents."""

import json
import sys
from pathlib import Path

import pytest

from monitor.cli.top_kernel import ProcessLooks, composition
from monitor.cli.top_sample import INCIDENTS, Sampler
from monitor.cli.top_trends import Trends
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.oom_candidates import Owner
from monitor.race.events import WorkingSets
from monitor.race.figure_age import PodPoints
from monitor.settings.config import RunConfig
from tests.limited import write
from tests.pods.top_node import MI, common, top
from tests.pods.top_node import busy as busy
from tests.pods.top_node import folder as folder
from tests.pods.top_node import node as node
from tests.puppet import Puppet
from tests.side.incident_samples import EVICTION_WON, variant
from tests.side.stores import store_at

S = 1_000_000_000


# -- growth


def test_growth_is_over_the_last_ten_seconds() -> None:
    trends = Trends()
    assert trends.growth("a") is None
    trends.note(100.0, {"a": 50 * MI})
    assert trends.growth("a") is None, "of one look nothing is known"
    trends.note(100.1, {"a": 90 * MI})
    assert trends.growth("a") is None, "nor of two that are too near"
    for second in range(1, 31):
        trends.note(100.0 + second, {"a": 50 * MI + second * 2 * MI, "b": 5 * MI})
    assert trends.growth("a") == pytest.approx(2 * MI)
    assert trends.growth("b") == 0
    assert trends.history("a")[-1] == 110 * MI
    for second in range(31, 42):
        trends.note(100.0 + second, {"a": 110 * MI})
    assert (trends.growth("a"), trends.growth("b"), list(trends.history("b"))) == (0, None, []), "b is gone"


def test_growth_before_the_first_look_is_what_the_daemon_remembers() -> None:
    """In the clock of the daemon 25 s are known: `a` grew by 60 MiB 8 and 4 s ago, `new` came 5 s ago."""
    points = (
        PodPoints(
            "a", False, ((1000 * S - 25 * S, 40 * MI), (1000 * S - 8 * S, 70 * MI), (1000 * S - 4 * S, 100 * MI))
        ),
        PodPoints("new", True, ((1000 * S - 5 * S, 10 * MI),)),
    )
    before = WorkingSets(1000 * S, 975 * S, points).to_json()
    trends, now = Trends(), {"a": 100 * MI, "still": 7 * MI, "new": 20 * MI}
    trends.remember(50.0, before, now)
    trends.note(50.0, now)
    assert trends.growth("a") == pytest.approx(6 * MI)
    assert trends.growth("still") == 0
    assert trends.growth("new") == pytest.approx(2 * MI)
    other = Trends()
    other.remember(50.0, None, now)
    other.note(50.0, now)
    assert other.growth("a") is None


# -- what memory is made of


@pytest.mark.parametrize(
    ("version", "stat", "files", "expected"),
    [
        (2, "anon 5\nfile 9\nshmem 2\nkernel 7\nslab 3\n", {}, (5, 2, 7)),
        (2, "anon 5\nshmem 2\nslab 3\nkernel_stack 4\npagetables 1\npercpu 1\nsock 90\n", {}, (5, 2, 9)),  # < 5.18
        (2, "anon 5\n", {}, (5, None, None)),
        (1, "total_rss 5\nrss 1\ntotal_shmem 2\n", {"memory.kmem.usage_in_bytes": 7}, (5, 2, 7)),
        (1, "total_rss 5\ntotal_shmem 2\n", {}, (5, 2, None)),  # cgroup.memory=nokmem
    ],
)
def test_what_a_cgroup_is_made_of(
    tmp_path: Path, version: int, stat: str, files: dict[str, int | str], expected: tuple[int | None, ...]
) -> None:
    path = write(tmp_path / "one", {"memory.stat": stat, **files})
    assert tuple(composition(Hierarchy(version, tmp_path), path).values()) == expected


def test_what_a_real_cgroup_is_made_of(node: Path) -> None:
    with Puppet(node / "busy") as puppet:
        before = composition(cgroupfs.detect(), node)
        puppet.do("anon(24)")
        after = composition(cgroupfs.detect(), node)
    assert (after["anon"] or 0) - (before["anon"] or 0) >= 23 * MI
    assert (after["kernel"] or 0) > 0


# -- the processes


def test_the_kernels_next_victim_and_the_scores_of_a_pod(node: Path) -> None:
    """Of the two processes of this node the smaller one has the higher oom_score_adj."""

    def owner(cgroup: Path) -> Owner | None:
        return Owner(f"uid-{cgroup.name}", f"ns/{cgroup.name}") if cgroup.name in ("busy", "quiet") else None

    now = [100.0]
    looks = ProcessLooks(lambda: now[0])
    hierarchy = cgroupfs.detect()
    with Puppet(node / "busy") as large, Puppet(node / "quiet") as small:
        large.do("anon(40)")
        found = looks.look(hierarchy, node, owner)
        assert found.victim is not None
        assert (found.victim["pid"], found.victim["pod"], found.victim["uid"]) == (large.pid, "ns/busy", "uid-busy")
        small.do("open('/proc/self/oom_score_adj', 'w').write('1000')")
        assert looks.look(hierarchy, node, owner) is found, "not looked at again so soon"
        now[0] += 5.1
        found = looks.look(hierarchy, node, owner)
        assert found.victim is not None
        assert (found.victim["pid"], found.victim["oom_score_adj"]) == (small.pid, 1000)
        assert found.scores == {"uid-busy": (0, 0), "uid-quiet": (1000, 1000)}
        assert [process.pid for _, process in found.processes["uid-busy"]] == [large.pid]


def test_a_look_that_takes_long_is_repeated_later(node: Path) -> None:
    """Each reading of this clock takes 1 s, so a look takes one: the next one comes 50 s after it."""
    readings = iter(range(1000))
    looks = ProcessLooks(lambda: float(next(readings)))
    first = looks.look(cgroupfs.detect(), node, lambda _: None)
    same = [looks.look(cgroupfs.detect(), node, lambda _: None) is first for _ in range(60)]
    assert same.index(False) == 49


# -- a frame


@pytest.mark.usefixtures("busy")
def test_the_keys_of_a_frame(folder: Path, tmp_path: Path, node: Path) -> None:
    store = store_at(tmp_path / "state/incidents.db")
    for number in range(INCIDENTS + 2):
        store.add(variant(number))
    done = top(*common(folder, tmp_path, node), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    frame = json.loads(done.stdout)
    assert frame["daemon"] is None
    assert frame["kernel_victim"]["pod"] == "default/busy"
    assert frame["kernel_victim"]["comm"].startswith(Path(sys.executable).resolve().name[:6])
    assert frame["node"]["anon"] >= 8 * MI
    assert frame["node"]["growth_bytes_per_s"] is None
    pods = {pod["name"]: pod for pod in frame["pods"]}
    assert pods["busy"]["oom_score_adj"] == {"lowest": 0, "highest": 0}
    assert pods["quiet"]["oom_score_adj"] is None, "it has no process"
    assert [one["id"] for one in frame["incidents"]] == [f"incident-{n:05d}" for n in range(INCIDENTS + 1, 1, -1)]
    assert "steps" not in frame["incidents"][0]
    text = top(*common(folder, tmp_path, node)).stdout
    assert "the kernel would kill next: " in text
    assert "incident incident-00006 at 2026-01-31T" in text


def test_incidents_are_read_when_there_are_new_ones_and_their_damage_is_shown(
    folder: Path, tmp_path: Path, node: Path
) -> None:
    state = tmp_path / "state"
    config = RunConfig(node_cgroup=str(node), pods=f"manifests:{folder}", state_dir=str(state), listen_port=9)
    sampler = Sampler(config)
    try:
        assert sampler.sample().frame["incidents"] == []
        store_at(state / "incidents.db").add(EVICTION_WON)
        assert [one["id"] for one in sampler.sample().frame["incidents"]] == [EVICTION_WON["id"]]
        (state / "incidents.db").write_bytes(b"no database " * 1000)
        found = sampler.sample().frame
        assert any(problem.startswith("incidents: ") for problem in found["problems"])
        (state / "incidents.db").unlink()
        found = sampler.sample().frame
        assert (found["incidents"], found["problems"]) == ([], [])
    finally:
        sampler.close()

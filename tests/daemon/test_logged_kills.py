"""OOM kills without BPF: the records are those of the rings, as far as the log or the counters know them."""

import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from monitor.kernel import kmsg
from monitor.kernel.cgroupfs import Hierarchy, cgroup_id
from monitor.kernel.kmsg import LoggedKill
from monitor.kernel.wire import OomEvent
from monitor.sources.logged_kills import LoggedKills
from tests.daemon.stand_ins import outbox

MARK = OomEvent("mark", 1, victim_tid=5, victim_comm="hog", victim_cgroup=8, anon_rss=4096, missing=("reclaim",))


def kills(table: Any, monkeypatch: pytest.MonkeyPatch, log: str) -> tuple[LoggedKills, MagicMock, MagicMock]:
    """They, their epoll and their consumer."""
    monkeypatch.setattr("monitor.sources.logged_kills.Kmsg", lambda hierarchy: kmsg.Kmsg(hierarchy, log))
    made, epoll, consumer = LoggedKills(table, outbox()), MagicMock(), MagicMock()
    made.open(epoll, consumer)
    return made, epoll, consumer


def test_the_end_of_a_victim_that_the_log_named_is_an_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = MagicMock()
    table.around = {Path("/pod/c0"): 4}.get
    made, epoll, consumer = kills(table, monkeypatch, "/dev/null")
    with subprocess.Popen(["sleep", "60"]) as victim:
        found = LoggedKill(MARK._replace(victim_pid=victim.pid), Path("/pod/c0"))
        assert made._mark(found) == found.event._replace(domain=4)
        (fd, handler), _ = epoll.register.call_args
        victim.kill()
    handler(fd)
    (exit_,) = consumer.oom.call_args.args
    assert exit_ == OomEvent("exit", exit_.ts_ns, victim.pid, 5, "hog", 8, 4)
    assert made._mark(found).missing == ("reclaim", "exit"), "gone before it was looked at"


def test_kills_are_counted_in_the_domains_and_in_all_of_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those from before it was known are not of now; a domain's own count has none of the cgroups below."""
    node, pod, deep = tmp_path / "node", tmp_path / "node/pod", tmp_path / "node/pod/c0/deep"
    deep.mkdir(parents=True)

    def count(path: Path, number: int) -> None:
        (path / "memory.events.local").write_text(f"low 0\noom 1\noom_kill {number}\n")

    files = [MagicMock(at=0, path=node), MagicMock(at=1, path=pod), MagicMock(at=2, path=None)]
    table = MagicMock(hierarchy=Hierarchy(2, tmp_path), is_pod=lambda at: at == 1, around=lambda path: path)
    table.__iter__.side_effect = lambda: iter(files)
    made, _, consumer = kills(table, monkeypatch, str(tmp_path / "none"))
    for path in (node, deep):
        count(path, 3)
    made.pods_came()
    assert not consumer.oom.called
    count(deep, 5)
    made.go_on(0)
    marks = [one.args[0] for one in consumer.oom.call_args_list]
    assert [(m.victim_cgroup, m.domain, m.source) for m in marks] == 2 * [
        (cgroup_id(deep), deep, "memory.events.local")
    ]
    made.go_on(0)
    assert consumer.oom.call_count == 2

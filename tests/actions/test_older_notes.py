"""What a release before the ledger left in files of its state dir is undone by each way back, and by the next start."""

import json
import os
from pathlib import Path

import pytest

from monitor.actions.changes import identity_of
from monitor.actions.ledger import MARKS, SCORES, SIDE
from monitor.actions.undo import undo_left
from monitor.kernel.procfs import Process
from tests import live
from tests.actions.braked import LIMIT_FILE, MIB, Stand, stand
from tests.actions.test_ledger import killed_daemon

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def left(held: Stand, pid: int, boot: str) -> str:
    """As da60687 leaves a pod that it has capped and marked, by SIGKILL; the pod's own limit."""
    limit = held.pod / LIMIT_FILE
    old = limit.read_text().strip()
    limit.write_text(str(64 * MIB))
    change = {
        "path": str(held.pod), "file": LIMIT_FILE, "identity": identity_of(held.pod), "old": old,
        "written": [str(64 * MIB)], "uid": "uid", "why": "evicted", "boot": boot,
    }  # fmt: skip
    with Process(pid) as process:
        started = process.started()
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    mark = {
        "cgroup": str(held.pod), "identity": identity_of(held.pod), "uid": "uid", "boot": boot,
        "cgroups": [str(held.pod)], "processes": [[pid, started, 100, 0]],
    }  # fmt: skip
    for name, content in (("changes", change), ("marks", mark)):
        (held.state / name).mkdir(parents=True)
        (held.state / name / "0123.json").write_text(json.dumps(content))
    return old


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("way", ["start", "unload"])
def test_files_of_a_killed_daemon_of_an_earlier_release_are_undone(tmp_path: Path, way: str, is_held: bool) -> None:
    """Its holds took the limit that is in the file for the pod's own."""
    with stand(tmp_path / "state") as held, held.puppet() as process:
        old = left(held, process.pid, BOOT)
        if is_held:
            killed_daemon(held, 32 * MIB)
        problems = []
        if way == "start":
            undo_left([held.state], lambda level, _, **rest: problems.append(rest) if level == "error" else None)
        else:
            done = live.outrace("unload", "--holds", "--state-dir", str(held.state))
            assert done.returncode == 0, done.stderr
        assert problems == []
        assert (held.pod / LIMIT_FILE).read_text().strip() == old
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "100\n"
        assert os.listdir(held.state) == []


def test_while_the_next_daemon_goes_on_with_a_hold_the_file_stays(tmp_path: Path) -> None:
    with stand(tmp_path / "state") as held, held.puppet() as process:
        old = left(held, process.pid, BOOT)
        brake = held.brake("limit")
        assert brake.apply(32 * MIB)
        undo_left([held.state], lambda *_, **__: None, roles=(SIDE, MARKS, SCORES))
        assert [path.name for path in held.state.rglob("*.json")] == ["0123.json"]
        brake.release()
        undo_left([held.state], lambda *_, **__: None)
        assert (held.pod / LIMIT_FILE).read_text().strip() == old


def test_of_an_earlier_boot_nothing_is_written_and_what_is_wrong_stays(tmp_path: Path) -> None:
    with stand(tmp_path / "state") as held, held.puppet() as process:
        left(held, process.pid, "another")
        wrong = held.state / "changes" / "4567.json"
        wrong.write_text(json.dumps({"boot": BOOT, "path": "/etc", "file": "shadow"}))
        problems = list[str]()
        undo_left([held.state], lambda level, _, **rest: problems.append(str(rest)) if level == "error" else None)
        assert int((held.pod / LIMIT_FILE).read_text()) == 64 * MIB
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n"
        assert [path.name for path in held.state.rglob("*.json")] == ["4567.json"]
        assert [str(wrong) in problem for problem in problems] == [True]

"""Protection against the pressure we watch, applied for real in child processes."""

import json
import os
import sys
import threading
from typing import Any

import pytest

from monitor.kernel.sched import HURRIED, hurry, take_time
from tests import live
from tests.commands import run as run_command

PROTECT = """
import dataclasses, gc, json, os
from monitor.kernel import sched
protection = sched.protect()
locked = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmLck"))
pid = os.fork()
if pid == 0:
    os._exit(os.sched_getscheduler(0))
_, status = os.waitpid(pid, 0)
print(json.dumps({
    **dataclasses.asdict(protection),
    "policy": os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK,
    "child_policy": os.waitstatus_to_exitcode(status),
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "locked_kb": locked,
    "adj": int(open("/proc/self/oom_score_adj").read()),
    "frozen": gc.get_freeze_count(),
}))
"""


#: Each thread starts the next one after it was listed and before it is put back, and ends; the sixth stays.
RELAY = """
import contextlib, json, os, threading
from monitor.kernel import sched
os.setpriority(os.PRIO_PROCESS, 0, -5)
passed = [(threading.Event(), threading.Event()) for _ in range(6)]
done = threading.Event()
def run(number):
    listed, begun = passed[number]
    if number + 1 < len(passed):
        listed.wait()
        threading.Thread(target=run, args=(number + 1,)).start()
        begun.set()
    else:
        done.wait()
threading.Thread(target=run, args=(0,)).start()
listdir, runners = os.listdir, iter(passed[:-1])
def listing(path):
    found = listdir(path)
    for listed, begun in runners:
        listed.set()
        begun.wait()
        break
    return found
os.listdir = listing
sched.started()
nice = []
for thread in listdir("/proc/self/task"):
    with contextlib.suppress(ProcessLookupError):  # one that had started the next ends at any time
        nice.append(os.getpriority(os.PRIO_PROCESS, int(thread)))
print(json.dumps(nice))
for listed, _ in passed:
    listed.set()
done.set()
"""


def run(script: str, *wrapper: str) -> Any:
    done = run_command(*wrapper, sys.executable, "-c", script, env=live.environment())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_what_it_says_is_true(got: dict) -> None:
    own = os.sched_getscheduler(0)  # of the session, which may be run at idle priority
    expected = {"SCHED_FIFO 1": (os.SCHED_FIFO, os.nice(0)), "nice -20": (own, -20)}
    policy, nice = expected.get(got["scheduler"], (own, got["nice"]))
    assert (got["policy"], got["nice"]) == (policy, nice)
    assert got["child_policy"] not in (os.SCHED_FIFO, os.SCHED_RR), "real-time scheduling must not be inherited"
    assert (got["mlocked"], got["oom_score_adj"]) == (got["locked_kb"] > 0, got["adj"])
    assert got["frozen"] > 0
    missed = [got["scheduler"] != "SCHED_FIFO 1", not got["mlocked"], got["oom_score_adj"] != -999]
    assert len(got["notes"]) == sum(missed)


@pytest.mark.live
def test_what_protect_reports_is_what_the_kernel_has() -> None:
    check_what_it_says_is_true(run(PROTECT))


@pytest.mark.live
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to drop")
def test_without_privileges_each_refusal_is_explained() -> None:
    without = ("setpriv", "--bounding-set=-sys_nice,-sys_resource,-ipc_lock", "--inh-caps=-all")
    got = run(PROTECT, *without, "prlimit", "--memlock=0:0")
    check_what_it_says_is_true(got)
    assert got["scheduler"] == "default"
    assert not got["mlocked"]
    assert all(any(remedy in note for note in got["notes"]) for remedy in ("CAP_SYS_NICE", "CAP_IPC_LOCK"))


@pytest.mark.live
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gets ahead of others")
def test_a_thread_that_is_started_while_they_are_put_back_is_too() -> None:
    """The thread of the HTTP server started the one of a route after it was listed: a helper stayed at nice -20."""
    assert set(run(RELAY)) == {0}


#: The kernel lists no thread behind one that exits meanwhile: here two listings end so.
CUT = """
import json, os, threading
from monitor.kernel import sched
os.setpriority(os.PRIO_PROCESS, 0, -5)
gone, done = threading.Thread(target=int), threading.Event()
gone.start()
threading.Thread(target=done.wait).start()
gone.join()
while os.path.exists(f"/proc/self/task/{gone.native_id}"):
    pass  # join() waits for Python's part of it alone
listdir, cuts = os.listdir, 2 * [[str(os.getpid()), str(gone.native_id)]]
os.listdir = lambda path: cuts.pop() if cuts else listdir(path)
sched.started()
print(json.dumps([os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in listdir("/proc/self/task")]))
done.set()
"""


@pytest.mark.live
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gets ahead of others")
def test_threads_behind_one_that_exited_are_put_back() -> None:
    assert run(CUT) == [0, 0]


#: Bytes of the program and its libraries that are not in memory, by file.
ABSENT = """
import json
import monitor.hot.main
from monitor.kernel import sched
sched.protect()
absent, path = {}, ""
for line in open("/proc/self/smaps"):
    words = line.split()
    if not words[0].endswith(":"):
        path = words[5] if len(words) > 5 and words[1][0] + words[1][3] == "rp" else ""
    elif path.startswith("/") and words[0] in ("Size:", "Rss:"):
        absent[path] = absent.get(path, 0) + (1 if words[0] == "Size:" else -1) * int(words[1])
print(json.dumps({path: kib for path, kib in absent.items() if kib and "/locale" not in path}))
"""


def test_no_page_of_the_program_has_to_be_read_in_the_shortage() -> None:
    """A library that was never used to its end is page cache like any other; the first decision met 60 such pages."""
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (5, 14):
        pytest.skip("madvise(MADV_POPULATE_READ) is of Linux 5.14")
    assert run(ABSENT) == {}


def test_a_thread_may_go_back() -> None:
    seen: list[int] = []
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def run() -> None:
        for step in (hurry, take_time):
            step()
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == ([HURRIED, 0] if os.geteuid() == 0 else [own, own])
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own

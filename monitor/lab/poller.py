"""The baseline: a process that reads the same counters every so often and kills when less is available than the margin.

Run as a file: `python3 -S -E poller.py cgroup=DIR margin=BYTES interval_us=N phase_us=N kill=PID,PID`. It gets
everything the monitor has but the events: real-time priority, descriptors kept open, victims known beforehand. It
prints `ready`, polls from the line `go` on, prints `killed NS`, and with `stop` the CPU time it used and for how long
it polled.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time


def main(arguments: list[str]) -> int:
    options = dict(argument.partition("=")[::2] for argument in arguments)
    cgroup, margin = options["cgroup"], int(options["margin"])
    interval = int(options["interval_us"]) / 1e6
    v2 = os.path.exists(f"{cgroup}/memory.current")
    usage = os.open(f"{cgroup}/{'memory.current' if v2 else 'memory.usage_in_bytes'}", os.O_RDONLY)
    stat = os.open(f"{cgroup}/memory.stat", os.O_RDONLY)
    with open(f"{cgroup}/{'memory.max' if v2 else 'memory.limit_in_bytes'}") as file:
        limit = int(file.read())
    key = b"\ninactive_file " if v2 else b"\ntotal_inactive_file "
    victims = [os.pidfd_open(int(pid)) for pid in options["kill"].split(",") if pid]
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        pass  # the monitor under test gets the same refusal
    os.write(1, b"ready\n")
    os.read(0, 64)
    began, cpu, polls = time.monotonic(), time.process_time(), 0
    due = began + int(options["phase_us"]) / 1e6
    killed = False
    while True:
        # Until the next poll is due, or the owner has had enough.
        if select.select([0], [], [], max(0.0, due - time.monotonic()))[0]:
            break
        polls += 1
        due = max(due + interval, time.monotonic())
        text = os.pread(stat, 8192, 0)
        at = text.index(key) + len(key)
        inactive = int(text[at : text.index(b"\n", at)])
        available = limit - max(0, int(os.pread(usage, 32, 0)) - inactive)
        if available < margin and not killed:
            killed = True
            for fd in victims:
                try:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            os.write(1, f"killed {time.monotonic_ns()}\n".encode())
    used, wall = time.process_time() - cpu, time.monotonic() - began
    os.write(1, f"used {used:.6f} {wall:.6f} {polls}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Whether a descriptor is ready. select(2) refuses numbers of 1,024 and more, which a process with many pods has."""

import select


def readable(fd: int, seconds: float | None = None) -> bool:
    """Wait until ``fd`` can be read, is at its end, or (a pidfd) its process has ended; False after ``seconds``."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))

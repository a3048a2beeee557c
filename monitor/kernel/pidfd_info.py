"""How a process ended that is nobody's child here, by its pidfd (Linux 6.15: PIDFD_GET_INFO, PIDFD_INFO_EXIT)."""

from __future__ import annotations

import fcntl
import struct

#: struct pidfd_info as of its first version (<linux/pidfd.h>): a mask first, the wait status last.
_SIZE, _MASK, _STATUS = 64, "Q", "i"
_INFO_EXIT = 1 << 3
_GET_INFO = 3 << 30 | _SIZE << 16 | 0xFF << 8 | 11  # _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)


def wait_status(pidfd: int) -> int | None:
    """What its parent's `waitpid` got (exit code * 256, or the signal); None while nobody has waited for it, and where
    the kernel does not say.
    """
    info = bytearray(_SIZE)
    struct.pack_into(_MASK, info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:  # ENOTTY: before Linux 6.13; ESRCH: before 6.15
        return None
    (mask,) = struct.unpack_from(_MASK, info)
    (status,) = struct.unpack_from(_STATUS, info, _SIZE - 4)
    return int(status) if mask & _INFO_EXIT else None

"""A command that runs another one to which socket(2) refuses AF_NETLINK, as systemd's RestrictAddressFamilies= does.

A real filter of the kernel: `python tests/seccomp.py ERRNO COMMAND...` puts it on itself and becomes the command.
"""

import ctypes
import os
import struct
import sys

#: Machine -> AUDIT_ARCH_*, number of socket(2): <linux/audit.h>, <asm/unistd.h>
_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
_AF_NETLINK = 16
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000
_PR_SET_SECCOMP, _FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38


def refusing_netlink(number: int) -> tuple[str, ...]:
    """The command to put before another one, for which socket(AF_NETLINK) fails with this errno."""
    return (sys.executable, "-S", "-E", __file__, str(number))


def _install(number: int) -> None:
    architecture, socket = _MACHINES[os.uname().machine]
    program = [
        (_LOAD, 0, 0, 4),  # seccomp_data.arch
        (_JUMP_IF_EQUAL, 0, 5, architecture),
        (_LOAD, 0, 0, 0),  # .nr
        (_JUMP_IF_EQUAL, 0, 3, socket),
        (_LOAD, 0, 0, 16),  # .args[0], the lower half
        (_JUMP_IF_EQUAL, 0, 1, _AF_NETLINK),
        (_RETURN, 0, 0, _ERRNO | number),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    whole = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), none, none, none) or libc.prctl(
        _PR_SET_SECCOMP, ctypes.c_ulong(_FILTER), ctypes.byref(whole), none, none
    ):
        raise OSError(ctypes.get_errno(), "prctl: " + os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    _install(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])

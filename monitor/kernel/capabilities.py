"""Doing without a capability for a moment, where it changes what the kernel does."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CAP_SYS_RESOURCE = 24
#: _LINUX_CAPABILITY_VERSION_3 (linux/capability.h): two words of 32 capabilities.
_VERSION = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Word(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def without(capability: int) -> Iterator[None]:
    """This thread alone does without it meanwhile; nothing changes where it does not have it. Raises OSError."""
    words = (_Word * 2)()
    _call(_libc.capget, words)
    word, bit = words[capability // 32], 1 << capability % 32
    had = word.effective & bit
    if had:
        word.effective &= ~bit
        _call(_libc.capset, words)
    try:
        yield
    finally:
        if had:
            word.effective |= bit
            _call(_libc.capset, words)


def _call(function: Callable[..., int], words: ctypes.Array[_Word]) -> None:
    if function(ctypes.byref(_Header(_VERSION, 0)), words):  # pid 0: the calling thread
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

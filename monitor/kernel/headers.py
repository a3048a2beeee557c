"""The tree of kernel headers that BCC insists on, made of one file: no package of headers is needed on the node.

BCC (0.26, 0.31 and 0.37 alike) includes the ten files below before every program, for its integer types, the page size
and one option of the configuration. No struct is read through headers (offsets come from BTF), so nothing else
in a kernel's can matter: compiled with Debian's, all programs were the same to the byte.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from monitor.errors import CannotError

#: Below include/. The first is included before all others, and has everything; the others are there to be found.
FILES = (
    *("linux/kconfig.h", "linux/types.h", "linux/bpf_common.h", "linux/version.h", "linux/log2.h", "asm/page.h"),
    *("uapi/linux/bpf.h", "uapi/linux/if_ether.h", "uapi/linux/if_packet.h", "uapi/linux/ptrace.h"),
)
_LINKS = ("build", "source")


def prepare(tree: Path, text: str) -> str:
    """Make ``tree`` what BCC_KERNEL_SOURCE must be, with ``text`` in its first file; its path. One that is right
    already is left alone: by now the disk may be full. Raises CannotError.
    """
    wanted = {f"include/{name}": text if name == FILES[0] else "" for name in FILES}
    try:
        # BCC looks for BCC_KERNEL_SOURCE/build and /source, as it would under /lib/modules/RELEASE.
        if all((tree / link / name).read_text() == wanted[name] for link in _LINKS for name in wanted):
            return str(tree)
    except (OSError, UnicodeDecodeError):
        pass  # there is none, or half of one
    try:
        shutil.rmtree(tree, ignore_errors=True)
        for name, content in wanted.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(content)
        for link in _LINKS:
            (tree / link).symlink_to(".")
    except OSError as error:
        raise CannotError(
            f"cannot write {tree}: {error.strerror}", "make room there, or use another --state-dir"
        ) from None
    return str(tree)

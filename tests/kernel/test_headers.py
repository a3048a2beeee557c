"""What BCC is given in the place of kernel headers, and that it is enough."""

import sys
from pathlib import Path

import pytest

from monitor.errors import CannotError
from monitor.kernel import charging, loader, pins
from tests import live
from tests.commands import run

#: Where header files of kernels are: with these empty there is no package of headers, and no kernel's build directory.
HIDDEN = ("/usr/src", "/lib/modules")
LOAD = """
import sys
from pathlib import Path
from monitor.kernel import loader
print(loader.ensure_loaded(Path(sys.argv[1]))[0].name)
"""


def test_a_tree_that_cannot_be_written_is_named_and_half_of_one_is_completed(tmp_path: Path) -> None:
    for text in ("one", "two"):
        loader.prepare_headers(tmp_path, text)
        assert (tmp_path / "source/include/linux/kconfig.h").read_text() == text
        (tmp_path / "source").unlink()
    with pytest.raises(CannotError, match=r"cannot write .*page.h/tree: Not a directory"):
        loader.prepare_headers(tmp_path / "include/asm/page.h/tree", "text")


@pytest.mark.kernel
@pytest.mark.once  # the loader prepares the same headers on every kernel
def test_programs_compile_and_load_where_no_kernel_header_is_installed(tmp_path: Path) -> None:
    if not any(offer.ok for offer in charging.offered()):
        pytest.skip("this kernel offers no hook")
    instance = loader.instance_directory(tmp_path)
    hide = "\n".join(f"[ ! -d {path} ] || mount -t tmpfs none {path}" for path in HIDDEN)
    wrapper = live.in_own_mounts(
        f"{hide}\n[ ! -e /sys/kernel/kheaders.tar.xz ] || mount --bind /dev/null /sys/kernel/kheaders.tar.xz\n"
        f"[ -z \"$(find {' '.join(HIDDEN)} -name '*.h' 2>/dev/null)\" ]"
    )
    try:
        done = run(*wrapper, sys.executable, "-P", "-c", LOAD, tmp_path, env=live.environment())
        assert done.returncode == 0, done.stderr
        assert [path.name for path in instance.iterdir() if path.is_dir()] == [done.stdout.strip()]
        assert done.stdout.strip() in map(loader.stamp, pins.HOOKS)
    finally:
        loader.unload(instance)

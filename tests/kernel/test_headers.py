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


def test_the_tree_is_what_bcc_looks_for(tmp_path: Path) -> None:
    tree = tmp_path / "state/headers"
    for text in ("one", "two", "two"):
        assert loader.prepare_headers(tree, text) == str(tree)
        for link in ("build", "source"):
            found = {name: (tree / link / "include" / name).read_text() for name in loader.HEADERS}
            assert found == {name: text if name.endswith("kconfig.h") else "" for name in loader.HEADERS}
    (tree / "build").unlink()
    loader.prepare_headers(tree, "two")
    assert (tree / "build/include/asm/page.h").exists(), "half of one is completed"
    with pytest.raises(CannotError, match=r"cannot write .*page.h/tree: Not a directory"):
        loader.prepare_headers(tree / "include/asm/page.h/tree", "text")


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

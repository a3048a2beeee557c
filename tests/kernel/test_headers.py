"""What BCC is given in the place of kernel headers, and that it is enough."""

import sys
from pathlib import Path

import pytest

from monitor.errors import CannotError
from monitor.kernel import charging, loader
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


def entries(tree: Path) -> dict[str, tuple[str, int]]:
    """Content and inode of every file as BCC finds them."""
    found = {}
    for link in ("build", "source"):
        for name in loader.HEADERS:
            file = tree / link / "include" / name
            found[f"{link}/{name}"] = (file.read_text(), file.stat().st_ino)
    return found


def test_the_tree_replaces_an_old_one_and_follows_none_of_its_links(tmp_path: Path) -> None:
    foreign = tmp_path / "usr-src"
    foreign.mkdir()
    (foreign / "kept.h").touch()
    tree = tmp_path / "state/headers"
    tree.mkdir(parents=True)
    (tree / "headers-6.1.0").symlink_to(foreign)  # an older release's trees were links to packaged ones
    for text in ("one", "two"):
        assert loader.prepare_headers(tree, text) == str(tree)
        assert not (tree / "headers-6.1.0").exists()
        for name, (content, _) in entries(tree).items():
            assert content == (text if name.endswith("kconfig.h") else "")
    assert (foreign / "kept.h").exists()
    before = entries(tree)
    loader.prepare_headers(tree, "two")
    assert entries(tree) == before, "a tree that is right is left alone"
    for path in ("include/asm/page.h", "source"):
        (tree / path).unlink()
        loader.prepare_headers(tree, "two")
        assert entries(tree).keys() == before.keys(), "half of one is made anew"
    with pytest.raises(CannotError, match=r"cannot write .*kept.h/tree: Not a directory"):
        loader.prepare_headers(foreign / "kept.h/tree", "text")


@pytest.mark.kernel
@pytest.mark.once  # the loader prepares the same headers on every kernel
def test_programs_compile_and_load_where_no_kernel_header_is_installed(tmp_path: Path) -> None:
    if why := charging.obstacle()[0]:
        pytest.skip(f"nothing to load on this kernel: {why}")
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
        assert done.stdout.strip() in loader.stamps().values()
    finally:
        loader.unload(instance)

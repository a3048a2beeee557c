"""`make deb`: a Debian package of this checkout, for Debian 12 and later and Ubuntu 24.04 and later.

The modules are below /usr/lib/outrace, a virtual environment that sees the distribution's packages (python3-bpfcc,
python3-psutil, python3-yaml). `VENDORED` are inside: Debian 12 has older releases than pyproject.toml asks for. The
same checkout makes the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from man_pages import pages

from monitor import __version__

ROOT = Path(__file__).resolve().parents[1]
DEB = ROOT / "deploy" / "deb"
#: Debian 12 has click 8.1.3, prometheus-client 0.16 and pyroute2 0.7.2. All three are Python alone.
VENDORED = ("click", "prometheus-client", "pyroute2")
#: One package for Debian 12 (Python 3.11), 13 (3.13) and what is between and after.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SCRIPTS = ("postinst", "prerm", "postrm")
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/outrace",
    "zsh": "usr/share/zsh/vendor-completions/_outrace",
    "fish": "usr/share/fish/vendor_completions.d/outrace.fish",
}
EXAMPLES = (
    "deploy/prometheus/outrace.rules.yml",
    "deploy/alertmanager/alertmanager.yml",
    "deploy/grafana/outrace.json",
)


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], env=os.environ | environment, cwd=ROOT, check=False, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"outrace: deb: `{' '.join(map(str, command))}` failed (see above)")
    return done.stdout


def git_version() -> str:
    """The release, with the number and name of the commit: `0.2.0+git1234.abcdef0`; without git, the release."""
    if not (ROOT / ".git").exists():
        return __version__
    number, name = run("git", "rev-list", "--count", "HEAD"), run("git", "rev-parse", "--short=7", "HEAD")
    return f"{__version__}+git{number.strip()}.{name.strip()}"


def changed_at() -> int:
    """Unix seconds of the newest commit; the date of all files, or two builds of it would differ."""
    return int(run("git", "log", "-1", "--format=%ct").strip()) if (ROOT / ".git").exists() else 1


def packed(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 9, mtime=0))


def modules(place: Path) -> None:
    """The wheel, which has the sources of the BPF programs inside, and the vendored packages."""
    with tempfile.TemporaryDirectory() as work:
        run(
            sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel", "--no-deps", "-w", work, "."
        )
        (wheel,) = Path(work).glob("outrace-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
    for name in VENDORED:
        for file in distribution(name).files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = place / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), target)


def fill(tree: Path) -> None:
    """Everything that is installed."""
    home = tree / "usr/lib/outrace"
    (home / "bin").mkdir(parents=True)
    (home / "bin/python3").symlink_to("/usr/bin/python3")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    modules(home / "lib/python3/site-packages")
    for version in PYTHONS:
        (home / "lib" / f"python{version}").symlink_to("python3")
    command = tree / "usr/bin/outrace"
    command.parent.mkdir()
    shutil.copyfile(DEB / "outrace", command)

    unit = (ROOT / "deploy/systemd/outrace.service").read_text()
    head, _, rest = unit.partition("[Unit]")  # the head says how to install it by hand
    assert head
    assert rest
    place = tree / "usr/lib/systemd/system/outrace.service"
    place.parent.mkdir(parents=True)
    place.write_text("[Unit]" + rest.replace("/opt/outrace/.venv/bin/outrace", "/usr/bin/outrace"))
    (tree / "etc/default").mkdir(parents=True)
    shutil.copyfile(DEB / "outrace.default", tree / "etc/default/outrace")

    for name, text in pages(changed_at()).items():
        packed(tree / f"usr/share/man/man8/{name}.8.gz", text.encode())
    outrace = Path(sys.executable).with_name("outrace")
    for shell, where in COMPLETIONS.items():
        target = tree / where
        target.parent.mkdir(parents=True)
        target.write_text(run(outrace, _OUTRACE_COMPLETE=f"{shell}_source"))
    docs = tree / "usr/share/doc/outrace"
    packed(docs / "changelog.gz", (ROOT / "CHANGELOG.md").read_bytes())
    shutil.copyfile(ROOT / "LICENSE", docs / "copyright")
    (docs / "examples").mkdir()
    for file in EXAMPLES:
        shutil.copyfile(ROOT / file, docs / "examples" / Path(file).name)


def build(out: Path, version: str) -> Path:
    """The package in directory ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work, "root")
        fill(tree)
        control = tree / "DEBIAN"
        control.mkdir()
        files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
        size = sum(path.stat().st_size for path in files)
        text = (DEB / "control").read_text()
        (control / "control").write_text(text.replace("@VERSION@", version).replace("@SIZE@", str(-(-size // 1024))))
        (control / "conffiles").write_text("/etc/default/outrace\n")
        sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files]
        (control / "md5sums").write_text("".join(sums))
        for script in SCRIPTS:
            shutil.copyfile(DEB / script, control / script)
        at = changed_at()
        for path in (tree, *tree.rglob("*")):
            if not path.is_symlink():
                runs = path.is_dir() or path.parent.name == "bin" or path.name in SCRIPTS
                path.chmod(0o755 if runs else 0o644)
            os.utime(path, (at, at), follow_symlinks=False)
        package = out / f"outrace_{version}_all.deb"
        run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, package, SOURCE_DATE_EPOCH=str(at))
    return package


def main() -> None:
    parser = argparse.ArgumentParser(prog="make deb ARGS=...", description="Build the Debian package.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="where to (default dist/)")
    parser.add_argument("--package-version", default="", metavar="V", help="default: the release and the commit")
    options = parser.parse_args()
    if shutil.which("dpkg-deb") is None:
        sys.exit("outrace: deb: dpkg-deb is missing: build on Debian or Ubuntu, or install the package dpkg")
    package = build(options.out.resolve(), options.package_version or git_version())
    print(f"{package} ({package.stat().st_size >> 10} KiB): apt install {package}")


if __name__ == "__main__":
    main()

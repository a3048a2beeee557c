"""The Debian package as `make deb` builds it: what is inside, that it runs from there, man pages and completion."""

import gzip
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
import pytest

from monitor.cli.main import cli
from tests.commands import ROOT, run

#: Of what the package depends on by name, this machine may have no Debian package: the environment of the tests has it.
NEEDED = ("psutil", "yaml")

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb: this is not Debian")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("deb")
    done = run(sys.executable, ROOT / "scripts/deb.py", "--out", out, "--package-version", "9.8.7")
    assert done.returncode == 0, done.stderr
    return out / "outrace_9.8.7_all.deb"


@pytest.fixture(scope="module")
def tree(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, unpacked below a directory of its own."""
    place = tmp_path_factory.mktemp("installed")
    run("dpkg-deb", "-x", package, place, check=True)
    return place


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def packaged(tree: Path) -> Run:
    """Runs a command as the package has it: with the interpreter in this directory instead of /usr/lib, and of the
    tests' environment only `NEEDED`.
    """
    # Where the distribution's packages would be found: -I reads no PYTHONPATH.
    home = tree / "usr/lib/outrace/lib/python3/site-packages"
    for name in NEEDED:
        (home / name).symlink_to(Path(str(importlib.import_module(name).__file__)).parent)
    there = tree / "usr/local/bin/outrace"
    there.parent.mkdir(parents=True)
    there.write_text((tree / "usr/bin/outrace").read_text().replace("#!", f"#!{tree}", 1))
    there.chmod(0o755)
    path = f"{there.parent}:/usr/bin:/bin:/usr/sbin:/sbin"
    return partial(run, env={"PATH": path, "LANG": "C.UTF-8"}, cwd="/")


def every_command(one: click.Command, name: str) -> Iterator[str]:
    """This one's and those below it, as their man pages are called."""
    yield name
    if isinstance(one, click.Group):
        context = click.Context(one)
        for below in one.list_commands(context):
            yield from every_command(one.get_command(context, below), f"{name}-{below}")


def test_fields_and_rights(package: Path, tree: Path) -> None:
    assert run("dpkg-deb", "-f", package, "Package", "Version", "Architecture").stdout.split("\n")[:3] == [
        "Package: outrace",
        "Version: 9.8.7",
        "Architecture: all",
    ]
    # tests/kernel/test_loader.py: the programs load without. With what they recommend they were 310 MiB of 559.
    wanted = run("dpkg-deb", "-f", package, "Depends", "Recommends").stdout
    assert "python3-bpfcc" in wanted
    assert "headers" not in wanted
    listed = [line.split(maxsplit=5) for line in run("dpkg-deb", "-c", package).stdout.splitlines()]
    assert {owner for _, owner, *_ in listed} == {"root/root"}
    assert {mode for mode, *_ in listed} == {"drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--", "lrwxrwxrwx"}
    runs = [name for mode, *_, name in listed if mode == "-rwxr-xr-x"]
    assert runs == ["./usr/bin/outrace"]
    control = package.parent / "control"
    run("dpkg-deb", "-e", package, control, check=True)
    assert (control / "conffiles").read_text() == "/etc/default/outrace\n"
    for script in ("postinst", "prerm", "postrm"):
        assert os.access(control / script, os.X_OK)
        run("sh", "-n", control / script, check=True)
    assert run("md5sum", "--check", "--quiet", control / "md5sums", cwd=tree).returncode == 0


def test_the_same_checkout_makes_the_same_bytes(package: Path, tree: Path, tmp_path: Path) -> None:
    """All but the wheel is made a second time: another wheel takes a minute on a busy machine."""
    code = (
        f"import shutil, sys, deb; from pathlib import Path; home, out = map(Path, sys.argv[1:]); needed = {NEEDED!r}\n"
        "deb.modules = lambda place: shutil.copytree(home, place, symlinks=True, ignore=lambda *_: needed)\n"
        "deb.build(out, '9.8.7')"
    )
    home = tree / "usr/lib/outrace/lib/python3/site-packages"
    paths = {"PYTHONPATH": f"{ROOT / 'scripts'}:{ROOT}", "PATH": os.environ["PATH"]}
    run(sys.executable, "-c", code, home, tmp_path, env=paths, check=True)
    assert (tmp_path / package.name).read_bytes() == package.read_bytes()


def test_the_unit_starts_the_packages_command(tree: Path) -> None:
    unit = (tree / "usr/lib/systemd/system/outrace.service").read_text()
    source = (ROOT / "deploy/systemd/outrace.service").read_text()
    assert "/opt/" not in unit
    started = re.findall(r"^Exec\w+=-?(\S+)", unit, flags=re.MULTILINE)
    assert started == ["/usr/bin/outrace"] * len(re.findall(r"^Exec", source, flags=re.MULTILINE)) != []
    assert (tree / "usr/bin/outrace").exists()


def test_it_runs_by_its_own_modules(tree: Path, packaged: Run) -> None:
    script = "import monitor, click, prometheus_client, pyroute2; print(monitor.__file__, click.__file__)"
    done = packaged(tree / "usr/lib/outrace/bin/python3", "-I", "-c", script)
    own = str(tree / "usr/lib/outrace")
    assert [path.startswith(own) for path in done.stdout.split()] == [True, True], done.stderr
    assert packaged("outrace", "--version").stdout.startswith("outrace ")
    assert json.loads(packaged("outrace", "doctor", "-o", "json").stdout)["checks"]


@pytest.mark.kernel
@pytest.mark.once
@pytest.mark.skipif(os.geteuid() != 0, reason="not root: no cgroup for a race")
def test_a_race_is_won_by_the_package(packaged: Run) -> None:
    done = packaged("outrace", "demo", "--runs", "1", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["wins"] == 1


def test_every_command_has_a_man_page(tree: Path) -> None:
    pages = {path.name: gzip.decompress(path.read_bytes()).decode() for path in (tree / "usr/share/man/man8").iterdir()}
    assert set(pages) == {f"{name}.8.gz" for name in every_command(cli, "outrace")}
    assert "\\-\\-eviction\\-hard" in pages["outrace-run.8.gz"]
    requests = {"TH", "SH", "TP", "PP", "B", "BR", "I", "nf", "fi"}
    for name, page in pages.items():
        used = re.findall(r"^[.'](\S*)", page, flags=re.MULTILINE)
        assert set(used) <= requests, name  # else text was taken for a request
        sections = re.findall(r"^\.SH (.*)", page, flags=re.MULTILINE)
        assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"], name


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff: the package groff-base has it")
def test_groff_has_no_complaint(tree: Path) -> None:
    """As of text that is taken for a request."""
    for path in sorted((tree / "usr/share/man/man8").iterdir()):
        page = gzip.decompress(path.read_bytes())
        done = subprocess.run(["groff", "-Kutf8", "-man", "-Tutf8", "-ww"], input=page, capture_output=True, check=True)
        assert done.stderr == b"", path.name
        assert done.stdout.startswith(b"OUTRACE"), path.name


@pytest.mark.parametrize(
    ("words", "wanted"),
    [(["exp"], {"explain"}), (["config", "sh"], {"show"}), (["run", "--eviction-h"], {"--eviction-hard"})],
)
def test_bash_completes(tree: Path, packaged: Run, words: list[str], wanted: set[str]) -> None:
    script = (
        f". {tree}/usr/share/bash-completion/completions/outrace; COMP_WORDS=(outrace {' '.join(words)});"
        f' COMP_CWORD={len(words)}; _outrace_completion outrace; echo "${{COMPREPLY[@]}}"'
    )
    done = packaged("bash", "-c", script)
    assert set(done.stdout.split()) == wanted, done.stderr


def test_the_source_has_the_bpf_programs_inside_as_the_package_has(tree: Path, tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, ROOT)
    assert done.returncode == 0, done.stderr
    (source,) = tmp_path.glob("*.tar.gz")
    programs = {path.name for path in (ROOT / "bpf").iterdir()}
    modules = tree / "usr/lib/outrace/lib/python3/site-packages"
    assert {path.name for path in (modules / "monitor/_bpf").iterdir()} == programs
    (entry,) = modules.glob("outrace-*.dist-info/entry_points.txt")
    assert "outrace = monitor.cli.main:main" in entry.read_text()
    with tarfile.open(source) as tar:
        assert programs <= {name.rpartition("/")[2] for name in tar.getnames()}

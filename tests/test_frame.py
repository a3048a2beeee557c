"""The frame around everything: the command, its exit codes, how data is printed, the doctor, set-up, packaging."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor import __version__
from monitor.cli import doctor, main, output
from monitor.errors import CannotError, ConfigError, MonitorError
from tests.commands import ROOT, called, run, without
from tests.live import environment, outrace
from tests.seccomp import refusing_netlink

# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_command_and_imports_none(flag: str) -> None:
    listing = "[name for name in sys.modules if name.startswith('monitor.')]"
    script = f"import json, sys; from monitor.cli.main import main; main(['{flag}']); print(json.dumps({listing}))"
    done = run(sys.executable, "-c", script, cwd=ROOT, env=environment())
    assert done.returncode == 0, done.stderr
    shown, loaded = done.stdout.rsplit("\n", 2)[:2]
    for name in main.COMMANDS:
        assert re.search(rf"^  {name} ", shown, re.M), name
    assert sorted(json.loads(loaded)) == ["monitor.cli", "monitor.cli.main", "monitor.errors"]


def test_version_names_bcc_and_the_kernel() -> None:
    done = outrace("--version")
    assert done.returncode == 0
    assert re.fullmatch(rf"outrace {re.escape(__version__)} \(bcc .+, kernel {os.uname().release}\)\n", done.stdout)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Puts a function in the command table as `outrace try`."""

    def put(function) -> None:
        module = sys.modules[__name__]
        monkeypatch.setattr(module, "placed", click.command("try")(function), raising=False)
        monkeypatch.setitem(main.COMMANDS, "try", (f"{__name__}:placed", "for this test"))
        monkeypatch.setitem(sys.modules, __name__, module)

    return put


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (MonitorError("it broke"), 1, "outrace: error: it broke\n"),
        (ConfigError("a.yaml: bad", "write 100Mi"), 2, "outrace: error: a.yaml: bad; write 100Mi\n"),
        (CannotError("no BTF", "use another kernel"), 3, "outrace: error: no BTF; use another kernel\n"),
        (KeyboardInterrupt(), 130, ""),
        (click.UsageError("what?"), 2, "outrace: error: what?; see `outrace try --help`\n"),
    ],
)
def test_errors_become_one_line_and_the_documented_exit_code(command, capsys, raised, code: int, line: str) -> None:
    def body() -> None:
        raise raised

    command(body)
    assert main.main(["try"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.lstrip("\n").endswith(line)


def test_a_command_returns_its_exit_code(command) -> None:
    command(lambda: 4)
    assert main.main(["try"]) == 4
    command(lambda: None)
    assert main.main(["try"]) == 0


def test_output_that_cannot_be_written_is_no_traceback() -> None:
    """To a reader that stopped early, and to a full disk."""
    read, write = os.pipe()
    os.close(read)
    full = os.open("/dev/full", os.O_WRONLY)
    for stdout, said in ((write, ""), (full, "outrace: error: stdout: No space left on device\n")):
        done = outrace("--help", capture_output=False, stdout=stdout, stderr=subprocess.PIPE)
        os.close(stdout)
        assert (done.stderr, done.returncode) == (said, 1)


# -- printing ----------------------------------------------------------------------------------------------------------


@given(st.integers(-(2**70), 2**70))
def test_written_bytes_mean_what_was_given_to_half_a_digit(count: int) -> None:
    text = output.format_bytes(count)
    number, unit = re.fullmatch(r"(-?[\d.]+)([KMGTPE]i)?", text).groups()
    size = 1024 ** ("KMGTPE".index(unit[0]) + 1) if unit else 1
    assert abs(float(number) * size - count) <= (0.0500001 * size if unit else 0)
    assert [*map(output.format_bytes, (1023, 2**20 - 1, 2**62, None))] == ["1023", "1.0Mi", "4.0Ei", "-"]


@given(
    st.lists(
        st.tuples(st.integers(-(10**6), 10**6), st.text(st.characters(categories=["L", "N"]), max_size=12)), max_size=6
    )
)
def test_columns_line_up(rows) -> None:
    lines = output.table_lines(["n", "name"], rows)
    assert len(lines) == len(rows) + 1
    width = max(len(str(cell)) for cell in ["n", *(n for n, _ in rows)])
    for line, (number, name) in zip(lines[1:], rows, strict=True):
        assert (line[:width].strip(), line[width:].strip()) == (str(number), name.strip())


# -- the doctor --------------------------------------------------------------------------------------------------------


def test_the_doctors_json_is_the_contracts() -> None:
    done = called("doctor", "-o", "json")
    answer = json.loads(done.stdout)
    assert set(answer) == {"checks", "hook_plan"}
    names = [check["name"] for check in answer["checks"]]
    assert len(names) == len(set(names))
    plan = answer["hook_plan"]
    assert set(plan) == {"rung", "rungs"}
    assert [rung["name"] for rung in plan["rungs"]] == ["memcg-tracepoint", "kprobe", "poll"]
    assert all(check["detail"] for check in answer["checks"])
    for each in (*answer["checks"], *plan["rungs"]):
        assert set(each) == {"name", "ok", "detail", "remedy"}
        assert each["ok"] or each["remedy"], f"{each['name']} fails without a remedy"
    assert plan["rung"] in {None, *(rung["name"] for rung in plan["rungs"] if rung["ok"])}
    assert done.returncode == (0 if plan["rung"] else 3)


@pytest.mark.kernel
@pytest.mark.once
def test_the_doctor_passes_where_the_monitor_can_run() -> None:
    done = called("doctor")
    assert done.returncode == 0, done.stdout
    plan = json.loads(called("doctor", "-o", "json").stdout)["hook_plan"]
    assert plan["rung"] == next(rung["name"] for rung in plan["rungs"] if rung["ok"]), "the best that is offered"
    assert f"hook plan: {plan['rung']}" in done.stdout


@pytest.mark.kernel
@pytest.mark.once
def test_without_bpf_the_doctor_names_the_rung_below_and_why() -> None:
    done = outrace("doctor", "-o", "json", wrapper=without("bpf", "perfmon", "sys_admin"))
    plan = json.loads(done.stdout)["hook_plan"]
    assert done.returncode == 0, "a machine without BPF can run it"
    assert plan["rung"] == "poll"
    refused = next(rung for rung in plan["rungs"] if rung["name"] == "memcg-tracepoint")
    assert not refused["ok"]
    assert refused["remedy"]


@pytest.mark.kernel
@pytest.mark.once
def test_the_doctor_names_why_new_processes_cannot_be_reported() -> None:
    done = outrace("doctor", "-o", "json", wrapper=refusing_netlink(errno.EAFNOSUPPORT))
    assert done.returncode == 0, done.stderr
    (check,) = [one for one in json.loads(done.stdout)["checks"] if one["name"] == "process-connector"]
    assert not check["ok"]
    assert check["detail"] == f"the process connector cannot be used: {os.strerror(errno.EAFNOSUPPORT)}"
    assert "RestrictAddressFamilies=" in check["remedy"]


@pytest.mark.kernel
@pytest.mark.once
def test_the_doctor_fails_without_privileges_and_names_the_remedy() -> None:
    wrapper = ("setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")
    done = outrace("doctor", "-o", "json", wrapper=wrapper)
    answer = json.loads(done.stdout)
    assert done.returncode == 3
    assert answer["hook_plan"]["rung"] is None
    failed = {check["name"]: check["remedy"] for check in answer["checks"] if not check["ok"]}
    assert {"root", *doctor.CAPABILITIES, "sched_fifo"} <= set(failed)
    assert failed["root"] == "run with sudo"
    assert "CAP_BPF" in failed["CAP_BPF"]


def test_pypis_bcc_is_not_taken_for_the_real_one(tmp_path: Path) -> None:
    impostor = tmp_path / "bcc"
    impostor.mkdir()
    (impostor / "__init__.py").write_text('__version__ = "0.1.10"\n')
    script = "from monitor.cli import doctor; print(doctor.bcc_version(), *doctor.examine())"
    done = run(sys.executable, "-c", script, env=environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}"))
    assert done.stdout.startswith("None "), done.stderr
    assert "Check(name='bcc', ok=False" in done.stdout
    assert "pip uninstall bcc" in done.stdout


# -- project -----------------------------------------------------------------------------------------------------------


def test_the_c_sources_travel_with_the_package() -> None:
    packaged = {entry.name for entry in (resources.files("monitor") / "_bpf").iterdir()}
    assert packaged == {path.name for path in (ROOT / "bpf").iterdir()}
    assert {Path(name).suffix for name in packaged} <= {".c", ".h"}, "pyproject.toml ships *.c and *.h only"
    assert os.readlink(ROOT / "monitor/_bpf") == "../bpf"


def test_bpf_sources_carry_their_licence() -> None:
    for path in (ROOT / "bpf").iterdir():
        assert "SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0" in path.read_text().splitlines()[0], path.name


def test_the_wrong_bcc_is_not_a_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "bcc" not in [re.match(r"[\w-]+", text)[0].lower() for text in project["dependencies"]]


def test_set_up_that_cannot_be_done_is_one_line(tmp_path: Path) -> None:
    """Not root and nothing installed: a copy of the project in which only the search for BCC finds nothing."""
    copy = tmp_path / "scripts/setup.sh"
    copy.parent.mkdir()
    text = (ROOT / "scripts/setup.sh").read_text()
    missing = text.replace("/usr/lib/python3/dist-packages", str(tmp_path / "no-such-place"))
    assert missing != text
    copy.write_text(missing)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    # As another user, because root would go and install the package.
    as_nobody = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.geteuid() and path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(0o755)
    done = run(*as_nobody, "/bin/bash", str(copy), cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr == "outrace: setup: must be root to install packages: run sudo make setup\n"

"""`outrace config translate` with files and processes of a node."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from monitor.cli.config import Word, _flags, of_arguments, of_command_line
from monitor.errors import ConfigError
from monitor.policy.errors import PolicyError
from tests import others
from tests.commands import called

SHELLS = """--kubeconfig=${SNAP_DATA}/credentials/kubelet.config
--node-ip=$NODE_IP
--eviction-hard="memory.available<100Mi","nodefs.available<1Gi" # don't
# by hand

--system-reserved memory=1Gi --v=2 \\
--serialize-image-pulls=false
"""
CONFIGURATION = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {memory.available: 1Gi, pid.available: 5%}
maxPods: 30
"""
HARD = {"memory.available": "100Mi", "nodefs.available": "1Gi"}
HAS = "give the kubelet's command line after --"
REMEDY = f"{HAS}, or --pid PID; `systemctl show -p ExecStart kubelet` has it"
NO_FLAG = "does not begin with a flag of the kubelet"


def translated(*arguments: str) -> tuple[dict[str, Any], str]:
    done = called("config", "translate", *arguments)
    assert done.returncode == 0
    made = yaml.safe_load(done.stdout)
    assert (made.pop("apiVersion"), made.pop("kind")) == ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration")
    return made, done.stderr


def refusal(*arguments: str) -> str:
    """One line."""
    done = called("config", "translate", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    return done.stderr


def test_flags_after_files_have_the_last_word_and_override_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "args").write_text(SHELLS)
    (tmp_path / "kubelet.yaml").write_text(CONFIGURATION)
    files = ("--file", str(tmp_path / "kubelet.yaml"), "--file", str(tmp_path / "args"))
    made, _ = translated(*files, "--", "--eviction-hard=memory.available<2Gi")
    assert made == {
        "evictionHard": HARD | {"memory.available": "2Gi"},
        "systemReserved": {"memory": "1Gi"},
        "maxPods": 30,
    }
    from_yaml = {"evictionHard": {"memory.available": "1Gi", "pid.available": "5%"}, "maxPods": 30}
    assert translated(*files[:2]) == (from_yaml, "")
    for fields in ({"kubeletconfig": from_yaml}, {"kind": "KubeletConfiguration", **from_yaml}):  # /configz, and a file
        (tmp_path / "kubelet.json").write_text(json.dumps(fields, indent="\t"))
        assert translated("--file", str(tmp_path / "kubelet.json")) == (from_yaml, "")
    (tmp_path / "kubelet.yaml").write_text("kind: KubeletConfiguration\nfeatureGates: {A: true, AllBeta: false}\n")
    made, notes = translated(*files[:2], "--", "--feature-gates=B=true, AllBeta=true")
    assert (made, notes.split()[-1]) == ({"featureGates": {"A": True, "AllBeta": True}}, "--feature-gates=B=true")
    (tmp_path / "kubelet.yaml").write_text("kind: KubeletConfiguration\n")
    assert "the configuration would be empty: no field is given; " in refusal(*files[:2])
    (tmp_path / "args").write_text('--kubelet-arg="eviction-hard=memory.available<100Mi"\n--disable=traefik\n')
    made, notes = translated(*files[2:])
    assert (made, notes.split()[-1]) == ({"evictionHard": {"memory.available": "100Mi"}}, "--disable")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot be read: No such file or directory; name a file with the kubelet's flags"),
        (b"\xff\xfe=", "not UTF-8"),
        (b"\n# nothing\n", f"holds no flag; {REMEDY}"),
        (b"[Service]\nExecStart=k3s server\n", f"1: {NO_FLAG}; {REMEDY}"),
        (b"#!/bin/sh\nset -e\nkubelet --eviction-hard=pid.available<9\n", f"2: {NO_FLAG}; {HAS}"),
        (b"--eviction-hard=pid.available<9 &\n", "1: '&' is not a flag of the kubelet: write --flag=value or"),
        (b"--kubelet-arg=eviction-hard=pid.available<9, x\n", "1: 'x' is not a flag of the kubelet: write --flag"),
        (b"--feature-gates=A=true, AllBeta=true\n", "1: 'AllBeta=true' is not a flag of the kubelet: write"),
        (b"--feature-gates=AllBeta=true,$A\n", "1: --feature-gates: its value has a variable; write what it stands"),
        (b"--eviction-hard='pid.available<9\n", "1: --eviction-hard: a quote or \\ is not closed"),
        (b"--v=" + b"2" * 70_000, "1: 70004 char"),
        (b"kind: KubeletConfiguration\nevictionhard: {}\n", "unknown key 'evictionhard'; did you mean 'evictionHard'?"),
        (b"kind: KubeletConfiguration\nevictionHard: {pid.available: 1e3Mi}\n", " evictionHard: pid.available: 1e3"),
        (b"write-kubeconfig-mode: '0644'\nkubelet-arg:\n- eviction-hard=memory.available<1Gi\n", "kubelet-arg of k3s"),
        (b"--v=2\n--eviction-hard=$HARD\n", "2: --eviction-hard: its value has a variable; write what it stands for"),
        (b"--evicton-hard=memory.available<1Gi\n", "1: --evicton-hard: is not known here; did you mean --"),
        (b"kind: Pod\n", f"is no KubeletConfiguration; {REMEDY}"),
        (b'---\n{"kind": "Pod"}\n', f"is no KubeletConfiguration; {REMEDY}"),
        (b"kind: KubeletConfiguration\nkind: Pod\n", "key 'kind' is given twice"),
        (b"kind: ClusterConfiguration\n---\nkind: KubeletConfiguration\n", "holds 2 YAML documents"),
        (b'{"kubeletconfig": 1}', f"is no KubeletConfiguration; {REMEDY}"),
    ],
)  # fmt: skip
def test_what_is_none_of_them_is_one_line_with_a_remedy(text: bytes | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "some"
    if text is not None:
        path.write_bytes(text)
    err = refusal("--file", str(path))
    assert err.startswith(f"outrace: error: {path}:")
    assert problem in err


@pytest.mark.parametrize(
    "typed",
    [
        ("--kubelet-arg=eviction-hard=memory.available<1Gi",),
        ("--kubelet-arg", "eviction-hard=memory.available<1Gi"),
        ("k3s", "server", "--tls-san=x", "--kubelet-arg=--eviction-hard=memory.available<1Gi"),
        ("/usr/bin/kubelet", "--eviction-hard=memory.available<1Gi"),
        ("/hyperkube", "kubelet", "--eviction-hard", "memory.available<1Gi"),
    ],
)
def test_a_command_line_as_it_is_typed(typed: tuple[str, ...]) -> None:
    assert translated("--", *typed) == ({"evictionHard": {"memory.available": "1Gi"}}, "")
    if typed[0][0] != "-":  # the same of a process, whose words are counted
        words = of_arguments(7, typed)
        assert [word.text for word in words] == [word.text for word in of_command_line(typed)]
        assert words[0].origin.startswith("process 7: word ")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("k3s", "server"), "--: 'k3s' has no --kubelet-arg, and its config.yaml was not read; give the kubelet's"),
        (("--v=2",), "the configuration would be empty: none of eviction, clean-up or reservation, and not"),
        (("--config=/etc/k",), "would be empty: --config has no field: its file was not read; give it with --file; a"),
        (("--maximum-dead-containers=3",), "would be empty: --maximum-dead-containers has no successor"),
        (("nginx", "-g"), f"--: 'nginx' is no kubelet; {REMEDY}"),
        (("/snap/kubelite", "--kubelet-args-file=/a/kubelet"), "'kubelite' has the flags in a file; give --file /a/ku"),
        (("--eviction-soft=memory.available<1Gi",), "error: --eviction-soft: memory.available: 1Gi: grace period must"),
        (("--system-reserved=ram=1Gi",), "error: --system-reserved: ram: 1Gi: cannot be reserved"),
    ],
)
def test_nothing_to_translate_and_what_no_kubelet_starts_with_are_errors(typed: tuple[str, ...], said: str) -> None:
    assert said in refusal("--", *typed)


def test_a_process_that_is_none() -> None:
    with pytest.raises(ConfigError, match="'cat' is no kubelet; name the pid of the kubelet"):
        of_arguments(7, ("/bin/cat", "kubelet.log"))
    remedy = "is no kubelet; name the pid of the kubelet (pgrep -u root kubelet)"
    assert remedy in refusal("--pid", str(os.getpid()))
    assert f"--pid {1 << 30}: No such file or directory" in refusal("--pid", str(1 << 30))


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot start a process of another user")
def test_the_arguments_of_another_users_process_are_not_read() -> None:
    # As `su` does where it waits for a password: root is its effective user, not its real one.
    code = "os.setresuid(65534, 0, 0); os.execv(sys.executable, ['kubelet', '-c', 'print(1); input()', '--v=2'])"
    command = (sys.executable, "-I", "-S", "-c", f"import os, sys; {code}")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert f"is a process of user {others.UID}; name the pid of" in refusal("--pid", str(process.pid))
        process.kill()


@given(st.text(st.sampled_from("-avz=\"'\\$ #\n\t"), max_size=40))
def test_any_text_is_read_or_refused_with_its_file(text: str) -> None:
    problem = ""
    words = list[Word]()
    try:
        words = list(_flags("args", text))
    except PolicyError as error:
        problem = str(error)
    assert bool(words) != problem.startswith("args:")
    for word in words:
        assert 1 <= int(word.origin.removeprefix("args:")) <= len(text.splitlines())

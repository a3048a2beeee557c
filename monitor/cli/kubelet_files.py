"""What `outrace config translate` is given beside flags: a file with one flag a line, a configuration, a process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from monitor.documents import UnreadableError
from monitor.errors import ConfigError
from monitor.kernel.procfs import Process
from monitor.pods.installations import microk8s_words, shell_words
from monitor.policy.configuration import Given
from monitor.policy.errors import PolicyError
from monitor.policy.translate import KIND, is_carried_over
from monitor.settings.files import read_text, refuse_misspelt, value
from monitor.settings.options import KUBELET_KEYS

_REMEDY = (
    "give the kubelet's command line after --, or --pid PID; `systemctl show -p ExecStart kubelet` has it; give each "
    "kubelet-arg of k3s or RKE2 (config.yaml too) as --kubelet-arg=FLAG=VALUE"
)
_NAME_IT = "name the pid of the kubelet (pgrep -u root kubelet)"
#: Bytes of a command line: more than any kubelet has (a k3s server with 200 flags: 20 KiB).
_MOST = 1 << 20
#: Characters of a line: shlex takes 10 s for one of 900 kB.
_LONGEST = 1 << 16
#: What starts a kubelet in its own process, with the kubelet's flags in arguments of its own.
_EMBEDDING, _WRAPPED = ("k3s", "rke2"), "--kubelet-arg"
#: What MicroK8s' kubelite is given, and where the file is.
_ARGS_FILE, _OF_MICROK8S = "--kubelet-args-file=", "/snap/microk8s/"
#: A line of a map in YAML or JSON.
_IS_CONFIGURATION = re.compile(r"""^(?:["']?kind["']?[ \t]*:|[ \t]*\{)""", re.MULTILINE)


class Word(NamedTuple):
    """A word of a command line, and where it was written."""

    text: str
    origin: str


def of_files(paths: Sequence[str]) -> tuple[list[Word], dict[str, Given]]:
    """The flags in these files, and the fields of a KubeletConfiguration. Raises ConfigError and PolicyError."""
    words, fields = list[Word](), dict[str, Given]()
    for path in paths:
        text = read_text(path, "name a file with the kubelet's flags")
        found = _configuration(path, text)
        if found is None:
            words += _flags(path, text)
        else:
            fields |= {key: Given(one, f"{path}: {key}") for key, one in found.items()}
    return words, fields


def of_process(pid: int) -> list[Word]:
    """The flags of the kubelet that runs as this process, or in it (k3s, RKE2). Raises ConfigError.

    A process of another user is refused before its arguments are read: any user may call one kubelet, and lay its
    arguments in memory that is endless or answers no read (prctl PR_SET_MM_MAP, a FUSE mount).
    """
    try:
        with Process(pid) as process:
            if others := process.users() - {0, os.geteuid()}:
                raise ConfigError(f"--pid {pid}: is a process of user {min(others)}", _NAME_IT)
            return of_arguments(pid, os.fsdecode(process.arguments(_MOST)).rstrip("\0").split("\0"))
    except OSError as error:
        raise ConfigError(f"--pid {pid}: {error.strerror}", _NAME_IT) from None


def of_arguments(pid: int, texts: Sequence[str]) -> list[Word]:
    """The flags of a kubelet with this command line. Raises ConfigError."""
    words = [Word(text, f"process {pid}: word {number}") for number, text in enumerate(texts, 1)]
    return _kubelets(f"--pid {pid}", words)


def of_command_line(texts: Sequence[str]) -> list[Word]:
    """The flags that were typed after --, with or without the kubelet before them. Raises ConfigError."""
    words = [Word(text, "") for text in texts]
    return _kubelets("--", words) if texts and texts[0][:1] != "-" else list(_unwrapped(words))


def _kubelets(where: str, words: Sequence[Word]) -> list[Word]:
    names = [word.text.rpartition("/")[2] for word in words]
    if found := next((word.text for word in words if word.text.startswith(_ARGS_FILE)), ""):
        raise ConfigError(f"{where}: {names[0]!r} has the flags in a file", f"give --file {found[len(_ARGS_FILE) :]}")
    if "kubelet" in names[:2]:
        return list(words[names.index("kubelet") + 1 :])
    if names[0].split(" ")[0] not in _EMBEDDING:
        raise ConfigError(f"{where}: {names[0]!r} is no kubelet", _NAME_IT if where != "--" else _REMEDY)
    if flags := list(_unwrapped(words[1:], others=False)):
        return flags
    raise ConfigError(f"{where}: {names[0]!r} has no --kubelet-arg, and its config.yaml was not read", _REMEDY)


def _unwrapped(words: Iterable[Word], others: bool = True) -> Iterator[Word]:
    """``--kubelet-arg=eviction-hard=...`` of k3s as the kubelet's flag; without k3s' own flags if not ``others``."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.text.partition("=")
        if name == _WRAPPED:
            value = value if equals else next(rest, Word("", "")).text
            yield Word(f"--{value.removeprefix('--')}", word.origin)
        elif others:
            yield word


def _configuration(path: str, text: str) -> Mapping[str, Any] | None:
    """The fields of a KubeletConfiguration, also as a kubelet answers /configz; None for what is none."""
    if not _IS_CONFIGURATION.search(text):
        return None
    try:
        found = value(text)
    except UnreadableError as error:
        raise ConfigError(f"{path}: {error}") from None
    if isinstance(found, dict) and isinstance(inner := found.get("kubeletconfig"), dict):
        found = {"kind": KIND, **inner}
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise ConfigError(f"{path}: is no {KIND}", _REMEDY)
    refuse_misspelt(path, found, KUBELET_KEYS)
    return {key: one for key, one in found.items() if key not in ("apiVersion", "kind") and one is not None}


def _flags(path: str, text: str) -> Iterator[Word]:
    """One flag a line, quoted as for a shell (but MicroK8s')."""
    split = microk8s_words if _OF_MICROK8S in os.path.realpath(path) else shell_words
    lines = {f"{path}:{number}": line.strip() for number, line in enumerate(text.splitlines(), 1)}
    lines = {origin: line for origin, line in lines.items() if line and line[0] != "#"}
    if not lines:
        raise PolicyError(f"{path}: holds no flag; {_REMEDY}")
    for origin, line in lines.items():
        if not line.startswith("-"):
            raise PolicyError(f"{origin}: not a flag of the kubelet on a line of its own; {_REMEDY}")
        yield Word(_flag(origin, line, split), origin)


def _flag(origin: str, line: str, split: Callable[[str], list[str]]) -> str:
    """A flag and its value. The value of an unrelated one may hold variables. Raises PolicyError."""
    if len(line) > _LONGEST:
        raise PolicyError(f"{origin}: {len(line)} characters, where {_LONGEST} are the most; give a kubelet's own")
    try:
        words = [word.text for word in _unwrapped(Word(one, origin) for one in split(line))]
    except ValueError:
        raise PolicyError(f"{origin}: {re.split('[= ]', line)[0]}: a quote or \\ is not closed") from None
    name, equals, text = words[0].partition("=")
    if not equals and len(words) > 1 and not re.match(r"-\D", words[1]):
        equals, text = "=", words.pop(1)
    if len(words) > 1:
        remedy = "write one flag a line, and a value that has blanks in quotes"
        raise PolicyError(f"{origin}: {name}: {words[1]!r} follows it; {remedy}")
    if "$" in text and (is_carried_over(name, text) or name == "--feature-gates"):
        raise PolicyError(f"{origin}: {name}: its value has a variable; write what it stands for")
    return f"{name}={text}" if equals else name

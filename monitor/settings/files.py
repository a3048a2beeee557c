"""Reading configuration files, the own one and a KubeletConfiguration. All raise ConfigError, one line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.documents import UnreadableError
from monitor.errors import ConfigError
from monitor.owner import ChangeableError, read_alone
from monitor.policy.configuration import Source
from monitor.settings.options import GONE_OPTIONS

#: Real keys of a KubeletConfiguration that look like one of ours and are not.
_NEIGHBOURS = ("systemReservedCgroup", "kubeReservedCgroup", "reservedSystemCPUs", "reservedMemory")
#: From this likeness on (`difflib`'s ratio, from 0 to 1) an unknown key is a misspelt one of ours. One letter missing,
#: too many or wrong in a key of twelve gives 0.92 to 0.96; the most alike that two real keys are is 0.82.
_ALIKE = 0.86


def read_own(path: str, known: Sequence[str]) -> dict[str, Any]:
    """The own file; it may hold the ``known`` keys only."""
    if path.endswith(".toml"):
        raise ConfigError(f"{path}: TOML is gone: write the file in YAML")
    data = _read(path)
    for key in data:
        if key not in known:
            if instead := GONE_OPTIONS.get(key):
                raise ConfigError(f"{path}: {key} is gone: {instead}")
            raise ConfigError(f"{path}: unknown key {key!r}", _did_you_mean(key, known))
    return data


def read_kubelet(path: str, known: Sequence[str]) -> Source:
    """A KubeletConfiguration as it is. Fields that are none of our business are ignored; one that looks like a misspelt
    one of the ``known`` would silently change the policy, so it is refused by name.
    """
    data = _read(path)
    api, kind = data.get("apiVersion"), data.get("kind")
    if kind != "KubeletConfiguration" or not str(api).startswith("kubelet.config.k8s.io/"):
        raise ConfigError(
            f"{path}: is not a KubeletConfiguration (apiVersion {api!r}, kind {kind!r})",
            "name the file the kubelet is started with: --config",
        )
    refuse_misspelt(path, data, known)
    return Source(path, data)


def refuse_misspelt(path: str, keys: Iterable[Any], known: Sequence[str]) -> None:
    """Raises ConfigError for a key that looks like one of the ``known`` and is not."""
    by_case = {name.lower(): name for name in known}
    for key in keys:
        if key in known or key in _NEIGHBOURS:
            continue
        folded = str(key).lower()
        if folded.startswith("eviction") or difflib.get_close_matches(folded, by_case, 1, _ALIKE):
            raise ConfigError(f"{path}: unknown key {key!r}", _did_you_mean(key, known))


def read_text(path: str, remedy: str = "", *, alone: bool = False) -> str:
    """The text of a file or a pipe; ``alone``: that root alone can have written."""
    try:
        content = read_alone(Path(path), pipes=True) if alone else documents.read_bytes(path, pipes=True)
        return documents.decoded(content)
    except documents.NotAFileError as error:
        raise ConfigError(f"{path}: {error}", "name a file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", remedy) from None
    except ChangeableError as error:
        raise ConfigError(f"{path}: not believed: {error}, or name a copy that root alone can write") from None
    except UnreadableError as error:
        raise ConfigError(f"{path}: {error}") from None


def _read(path: str) -> dict[str, Any]:
    """The mapping in a YAML or JSON file. Root believes none that others can write: it may name commands."""
    try:
        data = value(read_text(path, alone=os.geteuid() == 0))
    except UnreadableError as error:
        raise ConfigError(f"{path}: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: is not a map of keys to values")
    return data


def value(text: str) -> Any:
    """The value of a JSON text, or of a YAML text of one document. Raises UnreadableError."""
    if not text.lstrip().startswith("{"):
        return _document(text)
    try:  # JSON is nearly a subset of YAML, but not to PyYAML: it refuses tabs
        return documents.from_json(text)
    except UnreadableError as as_json:
        try:
            return _document(text)  # a map in YAML's own notation may begin like that too
        except UnreadableError:
            raise as_json from None


def _document(text: str) -> Any:
    found = [document for document in documents.from_yaml(text) if document is not None]
    if len(found) > 1:
        problem = f"holds {len(found)} YAML documents, and only one can be in force"
        raise UnreadableError(f"{problem}; keep one, and put the others into files of their own")
    return found[0] if found else None


def _did_you_mean(key: Any, known: Sequence[str]) -> str:
    by_case = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(str(key).lower(), by_case, 1)
    return f"did you mean {by_case[matches[0]]!r}?" if matches else f"known keys are {', '.join(known)}"

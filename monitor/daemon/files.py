"""Reading configuration files: the own one, a KubeletConfiguration, the drop-ins of one.

All raise ConfigError: one line with the file, the key, what is wrong and what to do about it.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from monitor.errors import ConfigError
from monitor.policy.configuration import Source

#: Real keys of a KubeletConfiguration that look like one of ours and are not.
_NEIGHBOURS = ("systemReservedCgroup", "kubeReservedCgroup", "reservedSystemCPUs", "reservedMemory")
#: From this likeness on (`difflib`'s ratio, from 0 to 1) an unknown key is a misspelt one of ours. One letter missing,
#: too many or wrong in a key of twelve gives 0.92 to 0.96; the most alike that two real keys are is 0.82.
_ALIKE = 0.86
_DROP_IN_SUFFIX = ".conf"


def read_own(path: str, known: Sequence[str]) -> dict[str, Any]:
    """The own file, TOML by its suffix, else YAML; it may hold the ``known`` keys only."""
    data = _read(path, toml=path.endswith(".toml"))
    for key in data:
        if key not in known:
            raise ConfigError(f"{path}: unknown key {key!r}", _did_you_mean(key, known))
    return data


def read_kubelet(path: str, known: Sequence[str]) -> Source:
    """A KubeletConfiguration as it is.

    Fields that are none of our business are ignored; one that looks like a misspelt one of the ``known`` would silently
    change the policy, so it is refused by name.
    """
    data = _read(path)
    api, kind = data.get("apiVersion"), data.get("kind")
    if kind != "KubeletConfiguration" or not str(api).startswith("kubelet.config.k8s.io/"):
        raise ConfigError(
            f"{path}: is not a KubeletConfiguration (apiVersion {api!r}, kind {kind!r})",
            "name the file the kubelet is started with: --config; a drop-in needs apiVersion and kind too",
        )
    by_case = {name.lower(): name for name in known}
    for key in data:
        if key in known or key in _NEIGHBOURS:
            continue
        folded = str(key).lower()
        if folded.startswith("eviction") or difflib.get_close_matches(folded, by_case, 1, _ALIKE):
            raise ConfigError(f"{path}: unknown key {key!r}", _did_you_mean(key, known))
    return Source(path, data)


def read_drop_ins(directory: str, known: Sequence[str]) -> list[Source]:
    """Every ``*.conf`` below the directory as a KubeletConfiguration, in the order the kubelet applies them."""
    try:
        return [read_kubelet(path, known) for path in _walk(directory)]
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: cannot be read: {error.strerror}",
            "name the directory the kubelet is started with: --config-dir",
        ) from None


def _walk(directory: str) -> Iterator[str]:
    """Files in lexical order, directories in their place among them, links to directories not followed."""
    with os.scandir(directory) as found:
        entries = sorted(found, key=lambda entry: os.fsencode(entry.name))
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        elif entry.name.endswith(_DROP_IN_SUFFIX):
            yield entry.path


def _read(path: str, toml: bool = False) -> dict[str, Any]:
    """The mapping in a YAML, JSON or TOML file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if toml:
            import tomllib

            return tomllib.loads(text)
        data = _parse(path, text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # bad UTF-8, TOML and dates are ValueErrors
        raise ConfigError(f"{path}: {_one_line(error)}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: is not a map of keys to values")
    return data


def _parse(path: str, text: str) -> Any:
    if text.lstrip().startswith("{"):
        # JSON is nearly a subset of YAML, but not to PyYAML: it refuses tabs.
        try:
            return json.loads(text, object_pairs_hook=lambda pairs: _once(path, pairs))
        except json.JSONDecodeError:
            pass  # a map in YAML's own notation may begin like that too

    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key given twice, which YAML forbids and PyYAML lets through; the kubelet refuses it too."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise ConfigError(f"{path}: line {key.start_mark.line + 1}: key {key.value!r} is given twice")
                seen.add(str(key.value))
            return super().construct_mapping(node, deep)

    try:
        documents = [document for document in yaml.load_all(text, Loader) if document is not None]
    except (yaml.YAMLError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        # All but the first are what PyYAML lets out of its constructors: `!!bool 7`, `!!timestamp x`.
        raise ConfigError(f"{path}: is not YAML: {_one_line(error)}") from None
    if len(documents) > 1:
        raise ConfigError(
            f"{path}: holds {len(documents)} YAML documents, and only one can be in force",
            "keep one, and put the others into files of their own",
        )
    return documents[0] if documents else None


def _once(path: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ConfigError(f"{path}: key {key!r} is given twice")
        found[key] = value
    return found


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _did_you_mean(key: Any, known: Sequence[str]) -> str:
    by_case = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(str(key).lower(), by_case, 1)
    return f"did you mean {by_case[matches[0]]!r}?" if matches else f"known keys are {', '.join(known)}"

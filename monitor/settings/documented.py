"""The own file explained, made of the table of options: an example with every key."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from monitor import documents
from monitor.settings.option import Option
from monitor.settings.options import GROUPS

_HEAD = """\
# Configuration of outrace, with every key: `outrace config example`.
# What is commented out has its default. Flags and OUTRACE_... in the environment win over this file.
# "at reload": a running daemon takes a new value when it gets SIGHUP, or by `outrace reload`; others need a restart.
"""
_WIDTH = 118


def example() -> str:
    """A YAML file with every key of the own file as a comment: what it is, its unit, default and reason. As it stands
    it changes nothing; each line that begins with ``#`` and no blank becomes a valid one without that sign.
    """
    return _HEAD + "".join(_groups())


def _groups() -> Iterator[str]:
    for title, options in GROUPS:
        yield f"\n# ---- {title}\n"
        for option in options:
            if option.own_file:
                yield "\n" + "".join(f"{line}\n" for line in _lines(option))


def _lines(option: Option) -> Iterator[str]:
    kubelets = f" As {option.kubelet_key} of a kubelet." if option.kubelet_key else ""
    changes = "at reload" if option.live else "at restart"
    for text in (
        option.help + kubelets,
        f"Unit: {option.value.unit}. Default: {option.default}. Changes: {changes}.",
        f"Why: {option.why}",
    ):
        yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    yield from (f"#{line}" for line in _yaml(option.name, shown_value(option)))


def _yaml(key: str, value: Any) -> list[str]:
    """One line, but for a table of tables."""
    if isinstance(value, dict) and any(isinstance(one, dict) for one in value.values()):
        return yaml.safe_dump({key: value}, default_flow_style=None, sort_keys=False, width=_WIDTH).splitlines()
    return [yaml.safe_dump({key: value}, default_flow_style=True, width=1000).strip()[1:-1]]


def shown_value(option: Option) -> Any:
    """The value in the example: the default where a file can have it, else one to begin with."""
    return next(documents.from_yaml(option.default)) if option.example is None else option.example

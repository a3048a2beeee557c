"""Dataclasses to plain dicts and back, exactly: what a recording, the incident store and a replay are made of."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Self, Union, get_args, get_origin, get_type_hints


class RecordError(ValueError):
    """A dict that is not what it should be; the message names the key."""


class Record:
    """Gives a frozen dataclass `to_json` and `from_json`. Keys stand in the order of the fields."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Numbers, texts, booleans, None, and lists and dicts of these."""
        made: dict[str, Any] = plain(self)
        return made

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The same value again. Raises RecordError naming the key."""
        made: Self = decode(cls, data, cls.__name__)
        return made


def plain(value: Any) -> Any:
    """``value`` with dataclasses as dicts and tuples as lists."""
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def decode(cls: Any, data: Any, where: str) -> Any:
    """A value of dataclass ``cls`` from a dict; every key is checked against the type of its field."""
    if not isinstance(data, Mapping):
        raise RecordError(f"{where}: must be a map, not {type(data).__name__}")
    hints = _hints(cls)
    made = {}
    for f in fields(cls):
        if f.name in data:
            made[f.name] = _checked(hints[f.name], data[f.name], f"{where}.{f.name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise RecordError(f"{where}.{f.name}: missing")
    unknown = [key for key in data if key not in hints]
    if unknown:
        raise RecordError(f"{where}.{unknown[0]}: not known")
    return cls(**made)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _checked(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        # Everything optional here is a single type or None.
        return _checked(next(a for a in get_args(hint) if a is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise RecordError(f"{where}: must be a list")
        args = get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple([_checked(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)])
        if len(args) != len(value):
            raise RecordError(f"{where}: must have {len(args)} items, not {len(value)}")
        return tuple([_checked(a, item, f"{where}[{i}]") for i, (a, item) in enumerate(zip(args, value, strict=True))])
    if origin is dict:
        if not isinstance(value, Mapping):
            raise RecordError(f"{where}: must be a map")
        return dict(value)
    if is_dataclass(hint):
        return decode(hint, value, where)
    if hint is Any:
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise RecordError(f"{where}: must be {hint.__name__}, not {value!r}"[:200])
    return value

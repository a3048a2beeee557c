"""Dataclasses and named tuples to JSON and back, exactly: recordings, the incident store, answers of the daemon."""

from __future__ import annotations

import types
from collections import abc
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

#: What earlier releases called an event in a recording.
_BEFORE = {"held": "suspended", "hold": "podheld", "holdend": "podreleased"}


class RecordError(ValueError):
    """A dict that is not what it should be; the message names the key."""


class Record:
    """Gives a frozen dataclass `to_json` and `from_json`. Keys stand in the order of the fields."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Numbers, texts, booleans, None, and lists and dicts of these."""
        found: dict[str, Any] = plain(self)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The same value again. Raises RecordError naming the key."""
        made: Self = decode(cls, data)
        return made


def plain(value: Any) -> Any:
    """``value`` with dataclasses and named tuples as dicts, tuples and sets (sorted) as lists. What has a `ts_ns` is an
    event, of one of several kinds: the key `event` says which, by the name of the class.
    """
    if is_dataclass(value) or hasattr(value, "_fields"):
        names = [f.name for f in fields(value)] if is_dataclass(value) else value._fields
        kind = {"event": type(value).__name__.lower()} if hasattr(value, "ts_ns") else {}
        return kind | {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return sorted(map(plain, value)) if isinstance(value, frozenset) else value


def tagged(kinds: Iterable[type], data: Any, where: str) -> Any:
    """A value of the one of these classes that its key `event` names."""
    name = data.get("event") if isinstance(data, Mapping) else None
    now = _BEFORE.get(str(name), name)
    cls = next((c for c in kinds if c.__name__.lower() == now), None)
    if cls is None:
        raise RecordError(f"{where}.event: {name!r} is not known")
    return decode(cls, data, where)


def decode(cls: Any, data: Any, where: str = "") -> Any:
    """A value of ``cls`` from a dict, or of a named tuple from the list of its fields; each is checked against the type
    of its field. Other keys are ignored.
    """
    where = where or cls.__name__
    if isinstance(data, list | tuple) and hasattr(cls, "_fields"):
        data = dict(zip(cls._fields, data, strict=False))
    if not isinstance(data, Mapping):
        raise RecordError(f"{where}: must be a map, not {type(data).__name__}")
    made = {name: _checked(hint, data[name], f"{where}.{name}") for name, hint in _hints(cls).items() if name in data}
    try:
        return cls(**made)
    except TypeError as error:  # names what is missing
        raise RecordError(f"{where}: {str(error).partition('() ')[2]}") from None


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _checked(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        kinds = [a for a in get_args(hint) if a is not type(None)]
        if value is None and len(kinds) < len(get_args(hint)):
            return None
        return _checked(kinds[0], value, where) if len(kinds) == 1 else tagged(kinds, value, where)
    if origin is frozenset:
        return frozenset([_checked(get_args(hint)[0], item, where) for item in value])
    if origin is tuple:
        return _checked_items(get_args(hint), value, where)
    if origin in (dict, abc.Mapping):
        if not isinstance(value, Mapping):
            raise RecordError(f"{where}: must be a map")
        of = get_args(hint)[1]
        return {name: _checked(of, item, f"{where}.{name}") for name, item in value.items()}
    if origin is abc.Sequence:
        return _checked_items((get_args(hint)[0], ...), value, where)
    is_made = is_dataclass(hint) or hasattr(hint, "_fields")
    return decode(hint, value, where) if is_made else _checked_scalar(hint, value, where)


def _checked_items(hints: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise RecordError(f"{where}: must be a list")
    if len(hints) == 2 and hints[1] is Ellipsis:
        hints = (hints[0],) * len(value)
    if len(hints) != len(value):
        raise RecordError(f"{where}: must have {len(hints)} items, not {len(value)}")
    return tuple([_checked(a, item, f"{where}[{i}]") for i, (a, item) in enumerate(zip(hints, value, strict=True))])


def _checked_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise RecordError(f"{where}: must be {hint.__name__}, not {value!r}"[:200])
    return value

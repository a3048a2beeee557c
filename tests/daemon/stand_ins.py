"""Objects of the hot process with stand-ins for what they read."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from monitor.hot.polled_records import PolledRecords
from monitor.policy.thresholds import Threshold
from monitor.sources.gauge import Gauge


def polled(**parts: Any) -> PolledRecords:
    """``parts``: arguments of the constructor, by name; nothing comes of the others."""
    given = {
        **{name: MagicMock() for name in ("table", "arming", "decider", "stats", "kills")},
        "send": lambda _: None,
        **parts,
    }
    return PolledRecords(**given)


def gauge(thresholds: tuple[Threshold, ...] = (), *, send: Any = None, config: Any = (), **parts: Any) -> Gauge:
    """``parts``: of the `MemorySource`, by name; nothing comes of the others."""
    source: Any = SimpleNamespace(
        **{"is_exact": True, **{name: MagicMock() for name in ("table", "arming", "sweeper")}, **parts}
    )
    given: Any = SimpleNamespace(
        **{
            "node_cgroup": "",
            "huge_pages_apart": False,
            "cgroup_root": "/no-kubepods",
            "step": 0,
            "enforce": False,
            "kills": False,
            "trigger": "user",
            "two_steps": False,
        }
        | dict(config)
    )
    return Gauge(source, given, thresholds, MagicMock(), send or (lambda _: None))

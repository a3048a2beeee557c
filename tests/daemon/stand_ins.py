"""Objects of the hot process with stand-ins for what they read."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from monitor.link.messages import LogLine
from monitor.policy.thresholds import Threshold
from monitor.sources.gauge import Gauge
from monitor.sources.poller import Poller


def outbox(send: Any = lambda _: None, stats: Any = None) -> Any:
    """``send`` gets what is logged too."""
    stats = MagicMock() if stats is None else stats
    return SimpleNamespace(send=send, log=lambda level, msg, **fields: send(LogLine(level, msg, fields)), stats=stats)


def polled(**parts: Any) -> Poller:
    """``parts``: arguments of the constructor, by name; nothing comes of the others."""
    return Poller(**{name: MagicMock() for name in ("table", "arming", "stats")} | parts)


def gauge(thresholds: tuple[Threshold, ...] = (), *, send: Any = None, config: Any = (), **parts: Any) -> Gauge:
    """``parts``: of the `MemorySource`, by name; nothing comes of the others."""
    source: Any = SimpleNamespace(
        **{"is_exact": True, **{name: MagicMock() for name in ("table", "arming", "sweeper")}, **parts}
    )
    given: Any = SimpleNamespace(
        **{
            "node_cgroup": "",
            "huge_pages_apart": False,
            "kernels_share": 0,
            "cgroup_root": "/",
            "step": 0,
            "enforce": False,
            "kills": False,
            "trigger": "user",
            "two_steps": False,
        }
        | dict(config)
    )
    with patch("monitor.sources.gauge.kubepods_of", return_value=None):  # this machine may have pods
        return Gauge(source, given, thresholds, outbox(send or (lambda _: None)))

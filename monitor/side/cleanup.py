"""Node-level clean-up in the daemon: asked for by the hot process, run by commands, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.policy.layout import DELETE_IMAGES
from monitor.settings.config import RunConfig
from monitor.side.export.log import Log

if TYPE_CHECKING:
    from monitor.actions.reclaim import Cleaned, Reclaimer

#: Those that a command can do here; dead containers are the kubelet's work, or the command's too.
ACTIONS = (DELETE_IMAGES,)


class Cleanup:
    """``done(actions)`` is called from a thread when a clean-up that was asked for has ended. ``paths`` are on the file
    systems that are measured before and after.
    """

    def __init__(
        self, config: RunConfig, paths: Sequence[Path], done: Callable[[tuple[str, ...]], None], log: Log
    ) -> None:
        self._config, self._paths, self._done, self._log = config, paths, done, log
        self._reclaimer: Reclaimer | None = None
        # For metrics, by action; written by the reclaimer's thread alone.
        self.runs: Counter[tuple[str, str]] = Counter()
        self.freed_bytes: Counter[str] = Counter()
        self.freed_inodes: Counter[str] = Counter()

    def request(self, actions: Sequence[str]) -> None:
        """Clean up, where that is configured and enforced."""
        if self._reclaimer is None:
            from monitor.actions.reclaim import Reclaimer  # few nodes ever clean up

            commands = {DELETE_IMAGES: self._config.reclaim_images}
            self._reclaimer = Reclaimer(
                commands, self._config.enforce, self._done, self._log, cleaned=self._count, paths=self._paths
            )
        self._reclaimer.request(actions)

    def close(self, timeout_s: float) -> None:
        """End the clean-up under way."""
        if self._reclaimer is not None:
            self._reclaimer.close(timeout_s)

    def _count(self, one: Cleaned) -> None:
        self.runs[one.action, one.result] += 1
        self.freed_bytes[one.action] += max(0, one.freed_bytes)
        self.freed_inodes[one.action] += max(0, one.freed_inodes)

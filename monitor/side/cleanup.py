"""Node-level clean-up in the daemon: asked for by the hot process, counted, and what it would free known before.

What is in a runtime's store is looked at every five minutes, as the kubelet looks for images: an image must have been
seen before it can be old enough to go, and so the figures are there when somebody asks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor.pods.stores import CRI, store_of
from monitor.policy.layout import DELETE_CONTAINERS, DELETE_IMAGES, DiskLayout
from monitor.policy.releases import era
from monitor.settings.config import RunConfig
from monitor.side.export.log import Log

if TYPE_CHECKING:
    from monitor.actions.reclaim import Cleaned, Reclaimer

ACTIONS = (DELETE_CONTAINERS, DELETE_IMAGES)
#: Seconds between two looks: ImageGCPeriod of the kubelet.
LOOK_S = 300.0
#: ... and at least, while somebody waits to be told what would be removed; twice as long after each look in vain.
SOON_S = 10.0


class Cleanup:
    """``done(actions)`` is called from a thread when a clean-up that was asked for has ended."""

    def __init__(
        self, config: RunConfig, layout: DiskLayout, done: Callable[[tuple[str, ...]], None], log: Log
    ) -> None:
        self._config, self._done, self._log = config, done, log
        self._rules, self._layout = era(config.policy), layout
        self._commands = {DELETE_CONTAINERS: config.reclaim_containers, DELETE_IMAGES: config.reclaim_images}
        #: Actions that are a runtime's, for which it is known what they would remove.
        self.stores = {action: str(store) for action, argv in self._commands.items() if (store := store_of(argv))}
        self._reclaimer: Reclaimer | None = None
        self._began = False
        self._looked_s = -LOOK_S  # monotonic
        self._soon_s = SOON_S
        self._short: frozenset[str] = frozenset()
        # How often each action became due, written by the thread of `turn`; and which of these times was told.
        self._shortages: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        # For metrics, by action; written by the reclaimer's thread alone.
        self.runs: Counter[tuple[str, str]] = Counter()
        self.removed: Counter[str] = Counter()
        self.freed_bytes: Counter[str] = Counter()
        self.freed_inodes: Counter[str] = Counter()
        self.candidates: Mapping[str, Mapping[str, Any]] = {}  # the last report of a look

    def request(self, actions: Sequence[str]) -> None:
        """Clean up, where that is configured and enforced."""
        self._open().request(actions)

    def turn(self, met: Sequence[str]) -> None:
        """Called about once a second, with the signals that are short now."""
        if not self.stores:
            return
        if not self._began:
            self._began = True
            self._say_beside_whom()
        wanted = {action for signal in met for action in self._rules.reclaim_actions(signal, self._layout)}
        short = frozenset(wanted & self.stores.keys())
        self._shortages.update(short - self._short)
        self._short = short
        if short and self._config.enforce:
            return  # a clean-up is asked for, and would wait for the look
        untold = any(self._told[action] != self._shortages[action] for action in short)
        if self._told == self._shortages:
            self._soon_s = SOON_S
        if time.monotonic() - self._looked_s >= (self._soon_s if untold else LOOK_S):
            self._soon_s = min(2 * self._soon_s, LOOK_S) if untold else self._soon_s
            self._looked_s = time.monotonic()
            self._open().look([action for action in ACTIONS if action in self.stores])

    def close(self, timeout_s: float) -> None:
        """End the clean-up under way."""
        if self._reclaimer is not None:
            self._reclaimer.close(timeout_s)

    def _say_beside_whom(self) -> None:
        from monitor.pods.installations import find_kubelet

        kubelet = find_kubelet()
        if kubelet.is_there and any(store.startswith(CRI) for store in self.stores.values()):
            text = "a kubelet here removes dead containers and unused images too; outrace does it as it was told to"
            self._log.warning(text, kubelet=str(kubelet), runtimes=", ".join(sorted(set(self.stores.values()))))

    def _open(self) -> Reclaimer:
        if self._reclaimer is None:
            from monitor.actions.reclaim import Reclaimer

            seen = Path(self._config.state_dir) / "cleanup-images.json"
            self._reclaimer = Reclaimer(
                self._commands, self._config.enforce, self._done, self._log, seen=seen, cleaned=self._cleaned
            )
        return self._reclaimer

    def _cleaned(self, one: Cleaned) -> None:
        from monitor.actions.reclaim import freed

        action, report = one.action, one.report
        if one.removing:
            self.runs[action, one.result] += 1
        if report is None:
            return
        if one.removing:
            self.removed[action] += report["removed"]
            size, inodes = freed(report)
            self.freed_bytes[action] += max(0, size)
            self.freed_inodes[action] += max(0, inodes)
            return
        self.candidates = {**self.candidates, action: report}
        if action in self._short and self._told[action] != self._shortages[action]:
            self._told[action] = self._shortages[action]
            self._log.info(
                "the node would be cleaned up first",
                action=action,
                runtime=report["runtime"],
                found=report["count"],
                bytes=report["bytes"],
                of_unknown_size=report["unknown_size"],
            )

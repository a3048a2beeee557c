"""`outrace reload` and SIGHUP: the configuration is read again here, in a thread, because a file may take for ever.

All or nothing. What is read is checked whole and used by the helper; then the hot process takes it between two passes,
after the pods that change with it (the table of services), and says so by `config_number`. Where anything fails, the
helper goes back to the old one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from monitor.errors import MonitorError
from monitor.kernel import meminfo
from monitor.link import channel
from monitor.link.counters import SharedStats
from monitor.link.messages import Reconfigure
from monitor.link.upgrade import is_replaced
from monitor.pods.spec import SERVICES
from monitor.policy.signals import MEMORY
from monitor.settings.config import RunConfig
from monitor.side.export.log import Log
from monitor.side.node_state import NodeState
from monitor.side.pod_watch import PodWatch

#: Pause between checks whether the hot process has applied it: it does in its next turn, or a debugger stops it.
_POLL_S = 0.02
#: Seconds between two looks at what the kernel keeps for itself.
FOLLOW_S = 60.0
#: The default threshold follows in steps of this, at least.
FOLLOW_STEP = 16 << 20


class Reloads(NamedTuple):
    """The results of reloads. ``answered`` is the number of the last answered request; requests answered together all
    count.
    """

    asked: int = 0
    answered: int = 0
    taken: int = 0
    refused: int = 0
    problem: str = ""  # of the last one; "" if it was taken
    changed: tuple[str, ...] = ()  # options that are another since the last one that was taken
    taken_at: float = 0.0  # Unix seconds; 0: never


@dataclass(eq=False)
class Reloader:
    """`state` is replaced as a whole. ``takers``: what takes another configuration, as far as it is there yet."""

    node: NodeState
    stats: SharedStats
    watch: PodWatch
    log: Log
    takers: list[Callable[[RunConfig], object]]

    def __post_init__(self) -> None:
        self._wake = threading.Condition()
        self.state = Reloads()
        self._share = self.node.config.kernels_share  # as it was last seen
        threading.Thread(target=self._run, name="reload", daemon=True).start()

    def ask(self) -> None:
        with self._wake:
            self.state = self.state._replace(asked=self.state.asked + 1)
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                wait_s = FOLLOW_S if self.node.config.kernels_share else None
                is_asked = self._wake.wait_for(lambda: self.state.asked > self.state.answered, wait_s)
                asked = self.state.asked
            if not is_asked:
                self._follow()
                continue
            try:
                changed = tuple(self._reload())
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a file, the daemon goes on as it was
                problem = str(error) if isinstance(error, MonitorError) else f"{type(error).__name__}: {error}"
                self.log.error("the configuration is not reloaded; the old one stays in force", problem=problem)
                self._answer(asked, refused=self.state.refused + 1, problem=problem)
            else:
                self.log.info("configuration reloaded", changed=list(changed))
                found = {"taken": self.state.taken + 1, "changed": changed, "taken_at": time.time()}
                self._answer(asked, problem="", **found)

    def _follow(self) -> None:
        """Have the default threshold follow what the kernel keeps for itself (`over_the_kernels_share`). Up, if two
        looks show it: pages of a large process that is going are on no list for a moment, and a higher line kills.
        """
        before = self.node.config
        try:
            seen = meminfo.kernels_share(huge_pages_apart=before.huge_pages_apart)
            self._share, share = seen, min(seen, self._share)
            if abs(share - before.kernels_share) < FOLLOW_STEP or before.record or is_replaced():
                return
            from monitor.settings.read import over_the_kernels_share

            config = over_the_kernels_share(before, share)
            if config.eviction_hard == before.eviction_hard:  # it was given
                return
            self._change(config)
        except Exception as error:  # noqa: BLE001 - the daemon goes on as it was
            problem = str(error) or type(error).__name__
            self.log.error("the default threshold does not follow the kernel's memory", problem=problem)
        else:
            was, now = (one.eviction_hard[MEMORY] for one in (before, config))
            self.log.info("the default threshold follows the kernel's memory", before=was, now=now)

    def _answer(self, asked: int, **fields: object) -> None:
        with self._wake:
            self.state = self.state._replace(answered=asked, **fields)  # type: ignore[arg-type]  # names are checked

    def _reload(self) -> list[str]:
        """The options that changed. Raises MonitorError where the old configuration stays."""
        if is_replaced():  # what is imported here would be the new version's
            raise MonitorError("outrace was upgraded while it runs", "restart it: systemctl restart outrace")
        from monitor.settings.reload import reread

        found = reread(self.node.config)
        if found.config.to_json() != self.node.config.to_json():
            self._change(found.config)
        return list(found.changed)

    def _change(self, config: RunConfig) -> None:
        """Put another configuration into force, or none. Raises MonitorError."""
        before = self.node.config
        try:
            self._go_by(config)
            self._have_taken(config)
        except Exception:
            self._go_by(before)
            raise

    def _go_by(self, config: RunConfig) -> None:
        """Apply it in the helper. Where the table of services is another one, the pods are looked at by it from begin
        to end: the look under way may be of before.
        """
        before, self.node.config, self.node.thresholds = self.node.config, config, config.thresholds()
        for take in self.takers:
            take(config)
        if config.pods == SERVICES and [*config.services.items()] != [*before.services.items()]:
            self.watch.source.rules = config.services
            enough = self.watch.look_soon() + 2
            while self.watch.look_soon() < enough:
                time.sleep(_POLL_S)

    def _have_taken(self, config: RunConfig) -> None:
        """Have the hot process take it, and wait until it has. Raises MonitorError where it cannot."""
        # Above one that was refused too: the answer to that would be taken for that to this one.
        number = 1 + max(self.stats.get("config_number"), self.stats.get("config_refused"))
        message = Reconfigure(number, config.to_json())
        try:
            channel.encode(message)
        except channel.TooLarge as error:
            raise MonitorError(f"too large to change while running: {error.message}", "restart outrace") from None
        self.watch.hand_on(message)
        # Wait for ever: once it is sent, the hot process may apply it at any time.
        while self.stats.get("config_number") != number:
            if self.stats.get("config_refused") == number:
                raise MonitorError(
                    "the hot process has no descriptor left for it, or is of another version than the helper process",
                    "try again: outrace reload; if that is refused too, restart outrace",
                )
            time.sleep(_POLL_S)

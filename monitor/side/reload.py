"""`outrace reload` and SIGHUP: the configuration is read again here, in a thread, because a file may take for ever.

All or nothing. What is read is checked whole; then the hot process takes it between two passes and says so by
`config_number`; only then the helper uses it. Anything that fails before that leaves the old one in force in both.
Where pods change with it (the table of services) the hot process gets these first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple

from monitor.errors import MonitorError
from monitor.kernel import meminfo
from monitor.link import channel
from monitor.link.counters import SharedStats
from monitor.link.messages import Reconfigure, SideMessage
from monitor.link.upgrade import is_replaced
from monitor.pods.spec import SERVICES
from monitor.policy.signals import MEMORY
from monitor.settings.config import RunConfig
from monitor.side.export.log import Log
from monitor.side.node_state import NodeState
from monitor.side.pod_watch import PodWatch

#: Pauses between checks whether the hot process has applied it: it does in its next turn, or a debugger stops it.
_POLL_S, _SLOW_POLL_S, _QUICK = 0.005, 0.25, 200
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
    half_taken: bool = False  # the last one is in force but for what ``problem`` says
    changed: tuple[str, ...] = ()  # options that are another since the last one that was taken
    taken_at: float = 0.0  # Unix seconds; 0: never


class _HalfTaken(Exception):
    """The hot process has the new configuration, and the helper could not apply all of it."""


@dataclass(eq=False)
class Reloader:
    """`state` is replaced as a whole. ``take_config`` gives it to what does not read the state."""

    node: NodeState
    stats: SharedStats
    send: Callable[[SideMessage], bool]
    wake_loop: Callable[[], None]
    watch: PodWatch
    log: Log
    take_config: Callable[[RunConfig], object]

    def __post_init__(self) -> None:
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self.state = Reloads()
        self.due: Reconfigure | None = None  # to be sent after the pods that were found until now
        self._follows = bool(self.node.config.kernels_share)
        self._share = self.node.config.kernels_share  # as it was last seen
        if self._follows:
            self._start()

    def ask(self) -> None:
        """Read the configuration again, soon."""
        with self._wake:
            self.state = self.state._replace(asked=self.state.asked + 1)
            if self._thread is None:  # the reader's memory is for those that reload
                self._start()
            self._wake.notify()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="reload", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._wake:
                wait_s = FOLLOW_S if self._follows else None
                is_asked = self._wake.wait_for(lambda: self.state.asked > self.state.answered, wait_s)
                asked = self.state.asked
            if not is_asked:
                self._follow()
                continue
            try:
                changed = tuple(self._reload())
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a file, the daemon goes on as it was
                half_taken, is_ours = isinstance(error, _HalfTaken), isinstance(error, _HalfTaken | MonitorError)
                problem = str(error) if is_ours else f"{type(error).__name__}: {error}"
                text = "the configuration is not reloaded; the old one stays in force"
                self.log.error("the configuration is reloaded in part" if half_taken else text, problem=problem)
                self._answer(asked, refused=self.state.refused + 1, problem=problem, half_taken=half_taken)
            else:
                self.log.info("configuration reloaded", changed=list(changed))
                found = {"taken": self.state.taken + 1, "changed": changed, "taken_at": time.time()}
                self._answer(asked, problem="", half_taken=False, **found)

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
            self._have_taken(config)
            self._go_by(config)
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
            is_of_pods = "services" in found.changed and found.config.pods == SERVICES
            try:
                self._have_taken(found.config, is_of_pods=is_of_pods)
            except MonitorError:
                if is_of_pods:
                    self.watch.source.rules = self.node.config.services
                    self.watch.look_soon()
                raise
            try:
                self._go_by(found.config)
            except Exception as error:
                raise _HalfTaken(
                    f"evictions go by the new configuration, alerts or disks by the old one: {error}; restart outrace"
                ) from error
        return list(found.changed)

    def _have_taken(self, config: RunConfig, *, is_of_pods: bool = False) -> None:
        """Have the hot process take it, and wait until it has. Raises MonitorError where it cannot. ``is_of_pods``:
        after the pods that it changes.
        """
        # Above one that was refused too: the answer to that would be taken for that to this one.
        number = 1 + max(self.stats.get("config_number"), self.stats.get("config_refused"))
        message = Reconfigure(number, config.to_json())
        try:
            channel.encode(message)
        except channel.TooLarge as error:
            raise MonitorError(f"too large to change while running: {error.message}", "restart outrace") from None
        if is_of_pods:
            self._look_by(config)
            self.due = message
        elif not self.send(message):
            raise MonitorError("the hot process takes no messages", "try again: outrace reload")
        self._wait(number)

    def _look_by(self, config: RunConfig) -> None:
        """Have the pods looked at by its table of services, from begin to end: the look under way may be of before."""
        self.watch.source.rules = config.services
        enough = self.watch.look_soon() + 2
        while self.watch.look_soon() < enough:
            time.sleep(_POLL_S)

    def _wait(self, number: int) -> None:
        """Wait for the hot process, which answers in its next turn. Raises MonitorError where it refuses."""
        # For ever: once it is sent, the hot process may apply it at any time.
        for pause_s in chain(repeat(_POLL_S, _QUICK), repeat(_SLOW_POLL_S)):
            if self.stats.get("config_number") == number:
                return
            if self.stats.get("config_refused") == number:
                raise MonitorError(
                    "the hot process has no descriptor left for it, or is of another version than the helper process",
                    "try again: outrace reload; if that is refused too, restart outrace",
                )
            if self.due is not None:
                self.wake_loop()
            time.sleep(pause_s)

    def send_due(self, due: Reconfigure) -> None:
        """The main loop has sent the pods that a configuration changes."""
        if self.send(due):
            self.due = None

    def _go_by(self, config: RunConfig) -> None:
        """Apply in the helper what the hot process has applied."""
        self.node.config, self.node.thresholds = config, config.thresholds()
        self.take_config(config)

"""What all events of a race have in common: when it was, and the threshold that some are about."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.race.codec import Tagged

NODE, KUBEPODS, PODS = "node", "kubepods", "pods"
OUTRACE, KUBELET = "outrace", "kubelet"


@dataclass(frozen=True, slots=True)
class Timed(Tagged):
    ts_ns: int


@dataclass(frozen=True, slots=True)
class OfThreshold(Timed):
    domain: str
    signal: str
    hard: bool

    @property
    def threshold(self) -> tuple[str, str, bool]:
        return self.domain, self.signal, self.hard

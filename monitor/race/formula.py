"""The kubelet's formula at the moment of a kill: how much it would have called available."""

from __future__ import annotations

from monitor.policy.signals import working_set
from monitor.race.episode import Episode
from monitor.race.events import KUBEPODS, KUBEPODS_SCOPES, NODE, PODS, Clear, Mark, Sample, Watched


def domain_of(mark: Mark) -> str:
    """The domain whose limit was hit."""
    if mark.scope in KUBEPODS_SCOPES:
        return KUBEPODS
    return NODE if mark.scope in ("global", NODE) else mark.oom_path or mark.memcg


def last_sample(episode: Episode, domain: str, at_ns: int) -> Sample | None:
    """The last figures of a domain recorded by ``at_ns``."""
    found = [e for e in episode.events if isinstance(e, Sample) and e.domain == domain and e.ts_ns <= at_ns]
    return found[-1] if found else None


def available_at(episode: Episode, mark: Mark, threshold: Watched | None) -> int | None:
    """capacity - (usage - inactive file) of the threshold's domain at ``mark``; None if not known."""
    if threshold is None or threshold.domain != domain_of(mark):
        return None
    if mark.scope != PODS and mark.oom_usage is not None and mark.oom_inactive_file is not None:
        return threshold.capacity - working_set(mark.oom_usage, mark.oom_inactive_file)
    last = last_sample(episode, threshold.domain, mark.ts_ns)
    cleared = max([e.ts_ns for e in episode.events if isinstance(e, Clear) and e.ts_ns <= mark.ts_ns], default=0)
    return threshold.capacity - last.working_set if last is not None and last.ts_ns >= cleared else None

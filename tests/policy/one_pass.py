"""One pass over pods that are ranked already."""

from collections.abc import Mapping, Sequence

from monitor.policy.ranking import Candidate, memory_order
from monitor.policy.synchronize import EvictionConfig, Observation, Outcome, State, synchronize
from monitor.policy.thresholds import Threshold

S = 10**9
CAPACITY = 1000


def pod(name: str, usage: int | None = 10, critical: bool = False, grace: int | None = None) -> Candidate:
    return Candidate(f"uid-{name}", "ns", name, 0, 0, usage, critical, grace)


PODS = memory_order([pod("small", 5), pod("big", 50), pod("huge-critical", 500, critical=True)])


def run(
    config: EvictionConfig,
    state: State,
    now: int,
    seen: Mapping[str, int],
    pods: Sequence[Candidate] = PODS,
    stamp: int = -1,
) -> tuple[State, Outcome]:
    """One pass at ``now`` seconds; ``seen`` gives what is available; they are stamped now unless ``stamp`` is given."""
    observations = {s: Observation(a, CAPACITY, now * S if stamp < 0 else stamp) for s, a in seen.items()}
    return synchronize(config, state, observations, now * S, lambda _: pods)


def first_observed(config: EvictionConfig, state: State) -> dict[Threshold, int]:
    """Since when each threshold that is met now has been; of two that are equal, the first."""
    found: dict[Threshold, int] = {}
    for rule, since in zip(config.rules, state.first, strict=False):
        if since is not None:
            found[rule.threshold] = min(since, found.get(rule.threshold, since))
    return found

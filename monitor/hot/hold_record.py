"""What went into a decision about holds and what came out, as a recording keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monitor.policy.hold import Domain, Look, Pod, State, Steps


def state_json(state: State) -> dict[str, Any]:
    """The state as `state_of` reads it."""
    return {**state._asdict(), "pods": [list(pod) for pod in state.pods], "left": dict(state.left)}


def state_of(data: Mapping[str, Any]) -> State:
    """The state that `state_json` wrote. Raises TypeError for anything else."""
    return State(**{**data, "pods": tuple(Pod(*pod) for pod in data.get("pods", ()))})


def look_json(look: Look) -> dict[str, Any]:
    """The look as `look_of` reads it."""
    return {**look._asdict(), "domains": {signal: list(domain) for signal, domain in look.domains.items()}}


def look_of(data: Mapping[str, Any]) -> Look:
    """The look that `look_json` wrote. Raises TypeError or ValueError for anything else. Recordings of earlier releases
    have `shown` too: those of whom the kubelet's own figures showed what they hold.
    """
    return Look(
        **{
            **{key: value for key, value in data.items() if key != "shown"},
            "domains": {signal: Domain(*domain) for signal, domain in data["domains"].items()},
            "growers": [(str(uid), int(usage)) for uid, usage in data["growers"]],
            "victim": (str(data["victim"][0]), int(data["victim"][1])),
        }
    )


def steps_json(steps: Steps) -> dict[str, Any]:
    """The steps; nobody reads them but to compare."""
    return {name: [list(one) for one in part] for name, part in steps._asdict().items()}

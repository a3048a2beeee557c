"""Whether a held pod may run for a moment for a process that starts in it (`monitor.actions.thaw_reasons`).

Below its cap, which was made for a pod that is frozen. So only the pod that a kubelet would evict now, not while others
are let across the threshold, and never where taking all of it would reach the second line. Pure. Sizes are bytes.
"""

from __future__ import annotations

from monitor.policy.hold import ACROSS, Look, Rules, State, second_line


def may_run(rules: Rules, state: State, look: Look, room: int | None) -> bool:
    """Whether the first of the order may. ``room``: what it and all that run already may take of what is available,
    below their caps; None: nobody knows.
    """
    if not (rules.kubelet and state.met_ns) or look.first not in look.usages or room is None:
        return False
    if state.opened or state.tight or state.step == ACROSS:
        return False
    rooms = [look.domains[s].available - second_line(left, look.domains[s].rate) for s, left in state.left.items()]
    return bool(rooms) and room < min(rooms)

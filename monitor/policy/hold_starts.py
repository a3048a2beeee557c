"""Whether a held pod may run for a moment for a process that starts in it (`monitor.actions.thaw_reasons`).

Below its cap, which was made for a pod that is frozen. So only the pod that a kubelet would evict now, and never where
taking all of it would reach the second line. Pure. Sizes are bytes.
"""

from __future__ import annotations

from monitor.policy.hold import Look, Rules, State, second_line


def may_run(rules: Rules, state: State, look: Look, cap: int) -> bool:
    """Whether the first of the order may. ``cap``: in force, or its own limit where that is lower; 0: there is none."""
    usage = look.usages.get(look.first)
    if not (rules.kubelet and state.met_ns and cap) or usage is None or state.opened or state.tight:
        return False
    rooms = [look.domains[s].available - second_line(left, look.domains[s].rate) for s, left in state.left.items()]
    return bool(rooms) and cap - usage < min(rooms)

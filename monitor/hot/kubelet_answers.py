"""How a kubelet answers a hold: it evicts the held pod, one that the policy would take before it, or another one."""

from collections.abc import Iterable

#: The kubelet reports an eviction when its pod has ended (30 s at most are waited for) and its status is due (10 s).
_REPORTS_NS = 60_000_000_000


class KubeletAnswers:
    """``other``: a pod that it evicted for memory, none of those that are held; ``last``: the last such, for the report
    of the hold. ``answered``: it evicted one that is held, or that the policy would have evicted before those.
    """

    def __init__(self) -> None:
        self.other = self.last = ""
        self.answered = False
        self._next_ns = 0  # when the end of another one counts again
        self._before: dict[str, int] = {}  # whom the policy would take before, and when: it reports after the kill

    def hold(self, before: Iterable[str], now_ns: int) -> None:
        """A pod is held now; ``before``: its uid, and those that come before it in the policy's order."""
        latest = {uid: ns for uid, ns in self._before.items() if now_ns - ns < _REPORTS_NS}
        self._before = latest | dict.fromkeys(before, now_ns)

    def take(self, uid: str, now_ns: int) -> None:
        """It evicted a pod for memory."""
        if now_ns - self._before.get(uid, -_REPORTS_NS) < _REPORTS_NS:
            self.answered = True
        else:
            self.other = self.last = uid

    def gone(self, uid: str, now_ns: int, *, held: bool) -> None:
        """A pod is gone. If it was ``held``, or one of those before, the kubelet looks again, and may report it later.
        Of those before that counts once: jobs come and go.
        """
        if now_ns - self._before.get(uid, -_REPORTS_NS) < _REPORTS_NS and (held or now_ns >= self._next_ns):
            self.answered = True
            self._next_ns = self._next_ns if held else now_ns + _REPORTS_NS

    def forget(self) -> None:
        """The policy has been asked with it."""
        self.other, self.answered = "", False

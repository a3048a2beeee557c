"""`--evict-by api`: pods/eviction instead of a kill, so that PodDisruptionBudgets apply. outrace sends no signal.

The hot process decides as in observe mode. One pod at a time, as in the kubelet: while one ends, the helper requests
no other. After a refusal of one pod, by a budget or by admission, it requests the policy's next candidate. After no
answer it requests the same pod again, three times (the request may have got through). Neither leads to a kill.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from monitor.errors import MonitorError
from monitor.kernel import cgroup_procs
from monitor.kube.client import PODS, ApiClient
from monitor.kube.errors import ApiError, Conflict, NotFound, TimedOut, TooManyRequests, Unauthorized
from monitor.kube.retry import Retry, passes
from monitor.link.messages import Decision
from monitor.pods.model import FoundPod
from monitor.policy.eviction_pass import DEFAULT_POD_GRACE_S
from monitor.policy.pods import Pod
from monitor.policy.qos import is_critical
from monitor.policy.ranking import Candidate
from monitor.policy.signals import MEMORY_SIGNALS
from monitor.race.events import Gone, Refused
from monitor.side.cluster.reports import uid_of
from monitor.side.disk_watch import DiskWatch
from monitor.side.export.log import Log
from monitor.side.judge import ACCEPTED_S, Histogram
from monitor.side.node_state import NodeState, OtherEviction, label

#: After a refusal the pod is not requested again before this: the period of the kubelet and of repeated decisions.
REFUSED_S = 10.0
#: After so many answers 503, 504 or 429 in a row for one pod the next candidate is tried: a pod can have its own 504.
ASKED_AGAIN = 3
ACCEPTED, BUDGET, GONE, FAILED, AWAY = OUTCOMES = ("accepted", "budget", "gone", "failed", "away")


#: A pod that has not ended so long after its grace no longer keeps the next one waiting, as in the kubelet.
TIMEOUT_S = 30.0
#: Between two checks of the pod that ends.
LOOK_S = 0.1
#: The hot process repeats a decision every 10 s while it applies: an older one is stale.
_FRESH_S = 15.0
#: The pass that decides is reported before the state with what is met.
_SETTLED_S = 1.0
#: Shortages that wait: two of memory, those of disks, and pods over limits of their own.
_MOST = 64
#: Pods named in a line of the log.
_SHOWN = 10
#: With 0 the API server would delete the pod before its kubelet has ended it; the kubelet's own least grace is 1.
_LEAST_GRACE_S = 1


class ApiEvictions:
    """`turn` does what is due. ``report`` gets each eviction that the API server made, each pod that ended, and pods
    that the API server refused to evict for memory.
    """

    def __init__(
        self,
        client: ApiClient,
        node: NodeState,
        disks: DiskWatch,
        report: Callable[[OtherEviction], object],
        log: Log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)  # for the metrics, as the next
        self.seconds = Histogram(ACCEPTED_S)
        self._client, self._node, self._disks, self._report, self._log = client, node, disks, report, log
        self._clock = clock
        self._retry = Retry(log, first_s=0.2, cap_s=5.0, clock=clock)
        self._unanswered = ("", 0)  # the uid of the pod that is tried again, and how often
        self._refusal = ""  # the last answer that refused a pod
        self._waiting: dict[str, tuple[Decision, float]] = {}  # by the signal, or the pod over a limit of its own
        self._ending: tuple[FoundPod, float, int] | None = None  # since when, by the clock as all times here; its grace
        #: uid -> until when it is not requested again, the outcome
        self._refused: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()
        self.woken = threading.Event()

    def decided(self, decision: Decision) -> None:
        """A pod is to be evicted. From any thread; never waits. A decision made while another pod ends is dropped."""
        with self._lock:
            subject = decision.signal or decision.pod
            self._waiting.pop(subject, None)
            self._waiting[subject] = decision, self._clock()
            while len(self._waiting) > _MOST:
                self._waiting.pop(next(iter(self._waiting)))
        self.woken.set()

    def turn(self) -> float | None:
        """Do what is due; seconds until the next is, None while there is nothing."""
        if self._ending is not None and not self._has_ended(*self._ending):
            return LOOK_S
        now = self._clock()
        if now < self._retry.due:
            return self._retry.due - now
        self._refused = {uid: one for uid, one in self._refused.items() if now < one[0]}
        with self._lock:
            waiting = sorted(self._waiting.items(), key=lambda one: one[1][0].signal not in MEMORY_SIGNALS)
        for subject, (decision, since) in waiting:
            if self._holds(decision, now - since) and not self._ask_first(decision, since):
                return max(0.0, self._retry.due - self._clock())
            with self._lock:
                if subject in self._waiting and self._waiting[subject][0] is decision:  # and no newer one
                    del self._waiting[subject]
            if self._ending is not None:
                return LOOK_S
        return 0.0 if self._waiting else None

    def _holds(self, decision: Decision, age_s: float) -> bool:
        """Whether a decision that had to wait still holds."""
        if decision.signal is None or age_s < _SETTLED_S:  # without a signal nothing says later whether it holds
            return age_s < _SETTLED_S
        met = any(one["signal"] == decision.signal and one["kind"] == decision.kind for one in self._node.met)
        return met and age_s < _FRESH_S

    def _ask_first(self, decision: Decision, since: float) -> bool:
        """Request the first candidate that is not refused. False: try the same decision again later."""
        kept: list[Pod] = []
        for rank, found in enumerate(self._candidates(decision), 1):
            pod = found.pod
            if pod.uid not in self._refused:
                # A refusal may take 10 s (a budget that is contended): the next pod is evicted only if it still has to.
                if not self._holds(decision, self._clock() - since):
                    break
                grace_s = self._grace_s(decision, pod.grace_period_s)
                outcome = self._ask(pod, grace_s)
                self.outcomes[outcome] += 1
                if outcome == AWAY:
                    return False
                if outcome == ACCEPTED:
                    self._log_kept(decision, kept, label(pod))
                    self._accepted(decision, found, rank, grace_s)
                    return True
                self._refused[pod.uid] = self._clock() + REFUSED_S, outcome
                if outcome == GONE and not _has_processes(found):  # one that was deleted by force may run on
                    return True  # its memory is freed: the next decision counts it
            kept += [pod] if self._refused[pod.uid][1] != GONE else []
        self._log_kept(decision, kept, None)
        return True

    def _ask(self, pod: Pod, grace_s: int) -> str:
        """One request; one of `OUTCOMES`. After AWAY the next one waits until it is due."""
        try:
            self._client.evict(pod.name, pod.namespace, uid=pod.uid, grace_period_s=grace_s)
        except MonitorError as error:
            return self._on_error(pod, error)
        self._unanswered = "", 0
        self._retry.works("the API server takes evictions again")
        return ACCEPTED

    def _on_error(self, pod: Pod, error: MonitorError) -> str:
        is_gone = isinstance(error, NotFound)
        if isinstance(error, Conflict):
            # Another pod has its name now, or the API server gave up after conflicts with other writers: try again.
            try:
                is_gone = uid_of(self._client.get(PODS, pod.name, pod.namespace)) != pod.uid
            except NotFound:
                is_gone = True
            except MonitorError as other:
                error = other
            if not is_gone:
                return self._away(pod, error)
        if is_gone:
            self._log.info("a pod to be evicted is gone, or made anew under its name", pod=label(pod), uid=pod.uid)
            self._retry.reset()
            return GONE
        # A pod under two budgets gets 500, every time: the next candidate is tried, not this one for ever.
        of_this_pod = isinstance(error, ApiError) and (error.code == 500 or not passes(error))
        if not of_this_pod or isinstance(error, Unauthorized):
            return self._away(pod, error)
        self._refusal = str(error)
        self._retry.reset()  # the server answers
        return BUDGET if isinstance(error, TooManyRequests) else FAILED

    def _away(self, pod: Pod, error: MonitorError) -> str:
        uid, times = self._unanswered
        self._unanswered = pod.uid, times + 1 if uid == pod.uid else 1
        may_be_of_pod = isinstance(error, ApiError | TimedOut) and not isinstance(error, Unauthorized)
        if may_be_of_pod and self._unanswered[1] >= ASKED_AGAIN:
            self._unanswered = "", 0
            self._refusal = str(error)
            return FAILED
        text = "the API server evicts no pod now, and no pod is killed; trying again"
        self._retry.failed(error, text, "error", pod=label(pod))
        return AWAY

    def _log_kept(self, decision: Decision, kept: Sequence[Pod], instead: str | None) -> None:
        if not kept:
            return
        names = [label(pod) for pod in kept[:_SHOWN]]
        text = "the API server refuses to evict pods"
        text += "; it evicts the next candidate" if instead else "; no pod is evicted or killed"
        fields = {"signal": decision.signal, "kind": decision.kind, "problem": self._refusal}
        self._log.warning(text, pods=names, kept=len(kept), instead=instead, **fields)
        if decision.signal in MEMORY_SIGNALS:
            about = time.monotonic_ns(), decision.domain, decision.signal, decision.kind == "hard"
            budget = any(self._refused[pod.uid][1] == BUDGET for pod in kept)
            self._report(Refused(*about, tuple(names), budget, self._refusal, instead))

    def _candidates(self, decision: Decision) -> list[FoundPod]:
        """The pod that was decided on, then the others of the order; a pod over a limit of its own is alone."""
        uids = [decision.pod]
        if decision.signal in MEMORY_SIGNALS:
            uids += [one.uid for one in (Candidate(*row) for row in decision.order) if not one.critical]
        elif decision.signal is not None:
            uids += self._disks.orders.get(decision.signal, ())
        pods = self._node.pods
        return [pods[uid] for uid in dict.fromkeys(uids) if uid in pods and not is_critical(pods[uid].pod)]

    def _grace_s(self, decision: Decision, own: int | None) -> int:
        """As the kubelet's: of a soft threshold the pod's own, `evictionMaxPodGracePeriod` at most."""
        if decision.kind != "soft":
            return max(_LEAST_GRACE_S, decision.grace_s)
        own_s = DEFAULT_POD_GRACE_S if own is None else own
        most_s = self._node.config.eviction_max_pod_grace_period_s
        return max(_LEAST_GRACE_S, own_s if most_s < 0 else min(own_s, most_s))

    def _accepted(self, decision: Decision, found: FoundPod, rank: int, grace_s: int) -> None:
        pod, now_ns = found.pod, time.monotonic_ns()
        took_s = max(0.0, (now_ns - decision.decided_ns) / 1e9)
        self.seconds.observe(took_s)
        about = {"pod": label(pod), "uid": pod.uid, "grace_s": grace_s, "seconds": round(took_s, 4)}
        self._log.warning("evicted by the API server", **about)
        self._ending = found, self._clock(), grace_s
        made: dict[str, Any] = {"pod": pod.uid, "name": label(pod), "rank": rank, "given_s": grace_s}
        if pod.uid != decision.pod:
            # Its figures are those of the order, not of the pod that was decided on.
            row = next((Candidate(*row) for row in decision.order if row[0] == pod.uid), None)
            made |= {"working_set": row.usage or 0, "request": row.request, "containers": {}} if row else {}
        self._report(decision._replace(observed=False, signalled_ns=now_ns, **made))

    def _has_ended(self, found: FoundPod, since: float, grace_s: int) -> bool:
        """Whether the next pod need not wait for this one."""
        pod, waited_s, ended = found.pod, self._clock() - since, not _has_processes(found)
        if not ended and waited_s < grace_s + TIMEOUT_S:
            return False
        self._ending = None
        with self._lock:
            self._waiting.clear()  # decided while the ended pod still had its memory
        if ended:
            self._log.info("an evicted pod has ended", pod=label(pod), uid=pod.uid, seconds=round(waited_s, 3))
            self._report(Gone(time.monotonic_ns(), pod.uid, label(pod), None))
        else:
            self._log.warning("an evicted pod does not end: going on without it", pod=label(pod), uid=pod.uid)
        return True


def _has_processes(found: FoundPod) -> bool:
    try:
        return not cgroup_procs.empty(found.cgroup)
    except OSError:
        return True

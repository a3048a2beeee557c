"""What the kubelet of a node makes of a pod that was killed, in the fake API server."""

from typing import Any

from tests.kube.fake_apiserver import FakeApiServer

POD = tuple[str, str]  # name, namespace


def relist(api: FakeApiServer, name: str, namespace: str = "default", relisted_before: bool = False) -> str:
    """The kubelet sees that all containers have ended, and writes that. What it knew of the phase until then counts: a
    pod that is Failed stays so; another one (or one that became Failed after the kubelet had looked,
    ``relisted_before``) is started again, and whatever the status was is written over. The phase it wrote.
    """
    wrote = ""

    def change(pod: dict[str, Any]) -> dict[str, Any]:
        nonlocal wrote
        status = pod["status"]
        failed = status["phase"] == "Failed" and not relisted_before
        ended = {"terminated": {"exitCode": 137, "reason": "Error"}}
        states = [ended if failed else {"running": {}}]
        status["containerStatuses"] = [{"name": "main", "state": state} for state in states]
        if not failed:
            status["phase"] = "Running"
            for key in ("reason", "message"):
                status.pop(key, None)
        wrote = status["phase"]
        return pod

    api.store.update(("pods", namespace, name), change)
    return wrote

"""A kubelet: /pods, /configz."""

import ssl

from tests.kube.fake_http import Asked, FakeServer, Reply
from tests.kube.fake_store import Object


class FakeKubelet(FakeServer):
    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.pods: list[Object] | None = []
        self.config: Object = {"evictionHard": {"memory.available": "100Mi"}, "cgroupDriver": "systemd"}
        self.forbidden: set[str] = set()  # paths
        super().__init__(context)

    def answer(self, asked: Asked, reply: Reply) -> None:
        path = asked.path
        if path in self.forbidden:
            message = (
                f"Forbidden (user=system:serviceaccount:o:o, verb=get, resource=nodes, subresource(s)=[proxy {path}])"
            )
            reply.body(403, message.encode(), {"Content-Type": "text/plain"})
        elif path == "/pods":
            reply.json(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.pods})
        elif path == "/configz":
            reply.json(200, {"kubeletconfig": self.config})
        else:
            reply.body(404, b"404 page not found\n", {"Content-Type": "text/plain"})

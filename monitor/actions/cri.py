"""The store of a runtime that speaks CRI (containerd, CRI-O): what is in it, and removing from it.

Imported in short-lived processes alone: gRPC and the stubs are 25 MiB and 90 ms of CPU (docs/dependencies.md).
"""

from __future__ import annotations

import glob
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monitor.actions.garbage import (
    CONTAINER,
    EXITED,
    OTHER,
    POD,
    RUNNING,
    Choice,
    Container,
    Garbage,
    Image,
    Pod,
    StoreTimeout,
    dead_containers,
    is_pause,
)
from monitor.errors import CannotError, MonitorError
from monitor.owner import ChangeableError, connected, mend
from monitor.pods.stores import Store

#: The kubelet's own bound of an answer (maxMsgSize of its client).
MOST_BYTES = 16 << 20
#: Seconds for a question; the removal of something may take what is left of the whole.
QUESTION_S = 10.0
PACKAGE = "container-runtime-interface-api"


class CriStore:
    """Context manager. ``deadline``: monotonic seconds at which the last call ends. Raises MonitorError."""

    def __init__(self, store: Store, deadline: float) -> None:
        self.name = str(store)
        socket = store.found
        if not socket:
            raise CannotError("no runtime listens for CRI here", "say where: cri:unix:///PATH")
        try:
            import grpc
            from cri_api.v1 import api_pb2, api_pb2_grpc
        except ImportError as error:
            pip = f"{sys.executable} -m pip install '{PACKAGE}>=2.0.1'"
            raise CannotError(f"CRI needs the Python package {PACKAGE} ({error})", f"run `{pip}`") from None
        self._grpc, self._api, self._deadline = grpc, api_pb2, deadline
        self.name = f"cri:unix://{socket}"
        self._socket = socket
        self._volumes: dict[str, set[str]] = {}  # container -> its images that are volumes
        options = [("grpc.max_receive_message_length", MOST_BYTES), ("grpc.enable_http_proxy", 0)]
        self._channel = grpc.insecure_channel(f"unix://{socket}", options)
        self._runtime = api_pb2_grpc.RuntimeServiceStub(self._channel)
        self._images = api_pb2_grpc.ImageServiceStub(self._channel)

    def __enter__(self) -> CriStore:
        try:
            if not stat.S_ISSOCK(os.stat(self._socket).st_mode):
                raise CannotError(f"{self._socket} is no socket", "say where the runtime listens: cri:unix:///PATH")
            if os.geteuid() == 0:  # what it names is removed as root; gRPC connects by itself, and later
                connected(Path(self._socket), QUESTION_S).close()
        except ChangeableError as error:
            raise CannotError(error.problem, mend(error.problem)) from None
        except OSError as error:
            raise CannotError(f"{self._socket}: {error.strerror}", "is the runtime running?") from None
        if not os.access(self._socket, os.W_OK):
            raise CannotError(f"{self._socket} may not be used by this user", "run it as root")
        version = self._ask(self._runtime.Version, self._api.VersionRequest())
        self._is_containerd = version.runtime_name == "containerd"
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def paths(self) -> list[str]:
        """Directories on the file systems of images and of writable layers."""
        answer = self._ask(self._images.ImageFsInfo, self._api.ImageFsInfoRequest())
        found = [*answer.image_filesystems, *getattr(answer, "container_filesystems", ())]
        return [one.fs_id.mountpoint for one in found]

    def dead(self) -> Choice:
        """Containers and sandboxes that may go."""
        return dead_containers(list(self._containers()), self._pods())

    def images(self) -> list[Image]:
        used = self._sandbox_images()
        answer = self._ask(self._images.ListImages, self._api.ListImagesRequest())
        return [self._image(one, used) for one in answer.images]

    def used(self) -> set[str]:
        """What the containers there are, running or not, and their volumes call their images."""
        listed = self._ask(self._runtime.ListContainers, self._api.ListContainersRequest()).containers
        found = {name for one in listed for name in (one.image_ref, one.image.image, one.image_id)}
        for one in listed:
            if one.id not in self._volumes:
                self._volumes[one.id] = self._volumes_of(one.id)
            found |= self._volumes[one.id]
        return found - {""}

    def _volumes_of(self, ident: str) -> set[str]:
        """Images are volumes too (Kubernetes 1.31), which only the status names. They are fixed when it is made."""
        try:
            return {mount.image.image for mount in self._status(ident).mounts}
        except MonitorError as error:
            if self._is_gone(error):
                return set()
            raise

    def check_removal(self) -> None:
        """The runtime does it, with its own rights."""

    def remove(self, one: Garbage) -> None:
        """Remove it; what is gone already is no error. Raises MonitorError."""
        api, ident = self._api, one.id
        if one.kind == CONTAINER:
            log = self._log_of(ident)
            dead = self._ask(self._runtime.ListContainers, self._filter(ident), removing=True).containers
            if any(found.id == ident for found in dead):
                self._ask(self._runtime.RemoveContainer, api.RemoveContainerRequest(container_id=ident), removing=True)
                _unlink_logs(log)
        elif one.kind == POD:
            self._check_pod(ident)
            # The kubelet stops it first too: its network may not have been torn down.
            self._ask(self._runtime.StopPodSandbox, api.StopPodSandboxRequest(pod_sandbox_id=ident), removing=True)
            self._ask(self._runtime.RemovePodSandbox, api.RemovePodSandboxRequest(pod_sandbox_id=ident), removing=True)
        else:
            spec = api.ImageSpec(image=ident)
            self._ask(self._images.RemoveImage, api.RemoveImageRequest(image=spec), removing=True)

    def _check_pod(self, ident: str) -> None:
        """To stop a sandbox kills what runs in it; the answer that it was chosen by may be minutes old."""
        api = self._api
        pods = self._ask(
            self._runtime.ListPodSandbox,
            api.ListPodSandboxRequest(filter=api.PodSandboxFilter(id=ident)),
            removing=True,
        ).items
        inside = self._ask(
            self._runtime.ListContainers,
            api.ListContainersRequest(filter=api.ContainerFilter(pod_sandbox_id=ident)),
            removing=True,
        ).containers
        if inside or any(pod.state != api.SANDBOX_NOTREADY for pod in pods):
            raise CriError(f"{self.name}: it is used again", "")

    def settle(self) -> None:
        """Have the runtime give back what was removed, before the disk is looked at.

        containerd removes layers up to 1.3 s after the container (measured, 1.6.20), by a garbage collector that works
        beside. The end of a lease with `sync` waits for it: `containerd/api/services/leases/v1/leases.proto`. Where
        that is refused the space comes later, and the next look sees it.
        """
        if not self._is_containerd:
            return
        ident = f"outrace-{os.getpid()}".encode()
        lease = b"\x0a" + bytes([len(ident)]) + ident  # field 1, a string: the id, of both requests
        for call, request in (("Create", lease), ("Delete", lease + b"\x10\x01")):  # field 2: sync
            method = self._channel.unary_unary(f"/containerd.services.leases.v1.Leases/{call}")
            try:
                method(request, timeout=self._left_s(), metadata=(("containerd-namespace", "k8s.io"),))
            except self._grpc.RpcError:
                return

    # what there is

    def _containers(self) -> Iterator[Container]:
        api = self._api
        states = {api.CONTAINER_RUNNING: RUNNING, api.CONTAINER_EXITED: EXITED}
        sizes = self._sizes()
        for one in self._ask(self._runtime.ListContainers, api.ListContainersRequest()).containers:
            yield Container(
                id=one.id,
                name=one.metadata.name,
                state=states.get(one.state, OTHER),
                pod=one.pod_sandbox_id or "unknown",
                order=(one.metadata.attempt, one.created_at),
                size=sizes.get(one.id),
                labels={**one.annotations, **one.labels},
            )

    def _sizes(self) -> dict[str, int]:
        """Bytes of writable layers. A runtime that has not looked yet says 0 at no time: not known."""
        try:
            answer = self._ask(self._runtime.ListContainerStats, self._api.ListContainerStatsRequest())
        except MonitorError:
            return {}  # figures for people: what may go does not depend on them
        layers = {one.attributes.id: one.writable_layer for one in answer.stats}
        return {ident: int(layer.used_bytes.value) for ident, layer in layers.items() if layer.timestamp}

    def _pods(self) -> list[Pod]:
        api = self._api
        answer = self._ask(self._runtime.ListPodSandbox, api.ListPodSandboxRequest())
        return [
            Pod(
                id=one.id,
                uid=one.metadata.uid,
                name=f"{one.metadata.namespace}/{one.metadata.name}",
                alive=one.state == api.SANDBOX_READY,
                order=(one.metadata.attempt, one.created_at),
                labels={**one.annotations, **one.labels},
            )
            for one in answer.items
        ]

    def _image(self, one: Any, sandbox_images: set[str]) -> Image:
        names, digests = tuple(one.repo_tags), tuple(one.repo_digests)
        keep = ""
        if one.pinned:
            keep = "pinned"
        elif sandbox_images & {one.id, *names, *digests} or is_pause((*names, *digests)):
            keep = "the image of sandboxes"
        return Image(one.id, names, digests, int(one.size) or None, dict(one.spec.annotations), keep)

    def _sandbox_images(self) -> set[str]:
        """What containerd says of the image of its sandboxes; releases that pin it need not say."""
        try:
            info = self._ask(self._runtime.Status, self._api.StatusRequest(verbose=True)).info
            found = json.loads(info.get("config", "{}")).get("sandboxImage", "")
        except (MonitorError, ValueError, AttributeError):
            return set()
        return {found} if isinstance(found, str) and found else set()

    def _status(self, ident: str) -> Any:
        return self._ask(self._runtime.ContainerStatus, self._api.ContainerStatusRequest(container_id=ident)).status

    def _log_of(self, ident: str) -> str:
        try:
            return str(self._status(ident).log_path)
        except MonitorError:
            return ""

    def _filter(self, ident: str) -> Any:
        """A question for the container if it is still dead."""
        state = self._api.ContainerStateValue(state=self._api.CONTAINER_EXITED)
        return self._api.ListContainersRequest(filter=self._api.ContainerFilter(id=ident, state=state))

    # calls

    def _left_s(self) -> float:
        return max(0.01, self._deadline - time.monotonic())

    def _ask(self, call: Callable[..., Any], request: Any, *, removing: bool = False) -> Any:
        timeout = self._left_s() if removing else min(QUESTION_S, self._left_s())
        with self._said(type(request).__name__.removesuffix("Request")):
            return call(request, timeout=timeout)

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._grpc.RpcError as error:
            code, details = error.code(), " ".join(str(error.details()).split())[:300]
            if code == self._grpc.StatusCode.DEADLINE_EXCEEDED:
                raise StoreTimeout(f"{self.name} does not answer ({what})", "look at the runtime's log") from None
            raise CriError(f"{self.name}: {what}: {code.name}: {details}", "") from None

    @staticmethod
    def _is_gone(error: MonitorError) -> bool:
        return isinstance(error, CriError) and "NOT_FOUND" in error.message


class CriError(MonitorError):
    """The runtime refused."""


def _unlink_logs(path: str) -> None:
    """Remove a container's log and what it was rotated to, as the kubelet does with the container."""
    if not os.path.isabs(path):
        return
    for name in (path, *glob.glob(f"{glob.escape(path)}.*")):
        try:
            if stat.S_ISREG(os.lstat(name).st_mode):
                os.unlink(name)
        except OSError:
            pass  # it is gone, or stays

"""Names and labels of root's containers, asked of docker and podman by their sockets.

Both answer docker's API; pods of podman are in its own. The author of an image is not the operator: outrace's labels
that the image has too do not count. Asked from the thread that looks for pods, when a container has come that is not
known. A runtime that hangs costs a second, and the pause before the next question doubles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.owner import ChangeableError, connected
from monitor.pods.units import DOCKER, PODMAN
from monitor.policy.services import LABELS, NEVER, PRIORITY

#: Where the sockets of root's runtimes are.
SOCKETS = {DOCKER: "/run/docker.sock", PODMAN: "/run/podman/podman.sock"}
_CONTAINERS = "/containers/json?all=true"
_QUESTIONS = {DOCKER: (_CONTAINERS,), PODMAN: (_CONTAINERS, "/v4.0.0/libpod/pods/json")}
_IMAGES = "/images/json?all=true"
#: Seconds for one question and its answer, all of it.
TIMEOUT_S = 1.0
#: Bytes of an answer: docker has some 1.5 KiB a container.
MOST_BYTES = 4 << 20
#: Seconds between two questions to a runtime that does not answer, or does not know a container: doubled each time.
_RETRY_S, _MOST_RETRY_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Known:
    """A container of ``image``, or a pod of podman with the ids of its ``members``; ``infra`` holds its namespaces."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    infra: str = ""
    image: str = ""


@dataclass(slots=True)
class _Asked:
    """When a runtime may be asked again (monotonic seconds), and what was wrong the last time."""

    again_s: float = 0.0
    pause_s: float = _RETRY_S
    problem: str = ""
    unknown: Set[str] = frozenset()  # ids that it did not know then


class Runtimes:
    """What the runtimes say of the containers that `refresh` names; ``sockets``: runtime -> path."""

    def __init__(self, sockets: Mapping[str, str] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sockets = SOCKETS if sockets is None else sockets
        self._known: dict[str, Known] = {}  # by all 64 digits of the id
        self._asked: dict[str, _Asked] = {}
        self.unsettled = False  #: whether to ask again soon

    def known(self, ident: str) -> Known | None:
        """None where the runtime has not said anything of it."""
        return self._known.get(ident)

    @property
    def problems(self) -> list[str]:
        """A line for each runtime that does not answer."""
        return [one.problem for one in self._asked.values() if one.problem]

    def refresh(self, wanted: Mapping[str, str]) -> None:
        """Ask the runtimes of those containers (id -> runtime) that are not known yet; forget all others."""
        self._known = {ident: known for ident, known in self._known.items() if ident in wanted}
        asked, self._asked = self._asked, {}
        for runtime in {wanted[ident] for ident in wanted.keys() - self._known.keys()}:
            ids = {ident for ident, of in wanted.items() if of == runtime and ident not in self._known}
            last = asked.get(runtime, _Asked())
            if self._clock() >= last.again_s or not (last.problem or ids <= last.unknown):
                last.problem = self._ask(runtime, wanted)
                last.unknown = ids - self._known.keys()
                last.again_s = self._clock() + last.pause_s
                last.pause_s = min(2 * last.pause_s, _MOST_RETRY_S)
            if last.unknown:
                self._asked[runtime] = last
        self.unsettled = bool(self._asked)

    def _ask(self, runtime: str, wanted: Mapping[str, str]) -> str:
        """Why it did not answer; "" if it did."""
        path = self._sockets.get(runtime, "")
        found: dict[str, Known] = {}
        try:
            for question in _QUESTIONS.get(runtime, ()):
                found |= read(ask(path, question))
            if any(label in known.labels for known in found.values() for label in LABELS):
                found = without_images(found, ask(path, _IMAGES))
        except (OSError, ValueError, ChangeableError) as error:
            return (
                f"{runtime} does not answer at {path} ({str(error) or type(error).__name__}): names and labels of "
                f"its containers are not known, so none is evicted but those that the table services: names; start "
                f"{runtime}.socket"
            )
        self._known |= {ident: one for ident, one in with_pods(found).items() if wanted.get(ident) == runtime}
        return ""


def read(answer: Any) -> dict[str, Known]:
    """Id -> what an answer of docker's or podman's lists says. What is not as expected is left out."""
    found: dict[str, Known] = {}
    for one in answer if isinstance(answer, list) else ():
        if not isinstance(one, dict) or not isinstance(ident := one.get("Id"), str):
            continue
        names = one.get("Names")
        first = names[0] if isinstance(names, list) and names else one.get("Name")
        labels = one.get("Labels")
        if labels is not None and not isinstance(labels, dict):
            continue
        name = first.lstrip("/") if isinstance(first, str) else ""
        # A name is one part of a path in logs and metrics; docker has links as names of several ("/web/db").
        found[ident] = Known(
            name.replace("/", "-")[:253] or ident[:12],
            {key: value for key, value in (labels or {}).items() if isinstance(key, str) and isinstance(value, str)},
            tuple(read(one.get("Containers"))),
            infra if isinstance(infra := one.get("InfraId"), str) else "",
            image if isinstance(image := one.get("ImageID"), str) else "",
        )
    return found


def without_images(found: Mapping[str, Known], images: Any) -> dict[str, Known]:
    """The same without those of outrace's labels that come from a container's image, by an answer with all images."""
    images_labels = {image.removeprefix("sha256:"): known.labels for image, known in read(images).items()}
    made: dict[str, Known] = {}
    for ident, known in found.items():
        theirs, labels = images_labels.get(known.image.removeprefix("sha256:"), {}), known.labels.items()
        own = {label: value for label, value in labels if label not in LABELS or theirs.get(label) != value}
        made[ident] = replace(known, labels=own)
    return made


def with_pods(found: Mapping[str, Known]) -> dict[str, Known]:
    """The same, where one that may never go keeps its pod, and a container has the priority of its pod."""
    joined = dict(found)
    for ident, pod in found.items():
        members = {one: found[one] for one in pod.members if one in found}
        never = next((one.labels[NEVER] for one in members.values() if one.labels.get(NEVER, "false") != "false"), None)
        if never is not None:
            joined[ident] = replace(pod, labels={**pod.labels, NEVER: never})
        inherited = {label: pod.labels[label] for label in (PRIORITY, NEVER) if label in pod.labels}
        joined |= {one: replace(known, labels={**inherited, **known.labels}) for one, known in members.items()}
    return joined


def ask(path: str, question: str) -> Any:
    """The parsed answer to a GET of a server of root's at a unix socket. Raises OSError, ValueError, ChangeableError.

    By HTTP 1.0, whose answer ends with the connection: so its whole time and size have a bound.
    """
    deadline = time.monotonic() + TIMEOUT_S
    data = b""
    with connected(Path(path), TIMEOUT_S) as sock:
        sock.sendall(f"GET {question} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        while part := sock.recv(65536):
            data += part
            if len(data) > MOST_BYTES:
                raise ValueError(f"an answer of more than {MOST_BYTES >> 20} MiB")
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError(f"no end of the answer within {TIMEOUT_S:g} s")
            sock.settimeout(left)
    head, _, body = data.partition(b"\r\n\r\n")
    status = head.split(b"\r\n")[0].split(b" ", 2)
    if len(status) < 2 or status[1] != b"200":
        raise ValueError(f"{head[:60].decode(errors='replace')!r} to GET {question}")
    return documents.from_json(documents.decoded(body))

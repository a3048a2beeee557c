"""The store of root's podman: what is in it, and removing from it, by the command `podman`.

The stores of users without root are none of ours: each is below a home directory and has its own podman.
"""

from __future__ import annotations

import itertools
import json
import os
import pwd
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from monitor.kernel.capabilities import CAP_FOWNER, has
from monitor.owner import ChangeableError, check_alone, mend, program, search_path

#: Bytes of an answer: podman has some 1 KiB a container.
MOST_BYTES = 16 << 20
#: Seconds for a question. It waits for podman's lock, which the removal of a large image holds.
QUESTION_S = 30.0
#: "stopped": nobody of it is left, and podman has not tidied up after it yet.
_DEAD = ("exited", "stopped")
#: Restart policies that leave a container alone once it has exited.
_RESTED = ("", "no")
_UNIT = "PODMAN_SYSTEMD_UNIT"
#: Variables that name podman's own files, which name programs in turn (conmon, hooks, the OCI runtime).
_FILES = ("CONTAINERS_CONF", "CONTAINERS_CONF_OVERRIDE", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF")


class PodmanStore:
    """Context manager. ``deadline``: monotonic seconds at which the last call ends. Raises MonitorError."""

    def __init__(self, deadline: float) -> None:
        self.name = "podman"
        self._deadline = deadline
        self._volumes: dict[str, set[str]] = {}  # container -> its images that are volumes
        try:
            self._program, self._environment = program("podman"), _environment()
        except FileNotFoundError:
            raise CannotError("there is no command podman here", "install it, or name another runtime") from None
        except ChangeableError as error:
            raise CannotError(f"podman: {error.problem}", mend(error.problem)) from None

    def __enter__(self) -> PodmanStore:
        with _understood("info"):
            info = self._ask("info")
            self._root = str(info["store"]["graphRoot"])
            host = info["host"]
            is_remote, is_users = host.get("serviceIsRemote"), host["security"]["rootless"]
        if is_remote:
            raise CannotError("podman asks another service", "remove it from root's containers.conf")
        if is_users:
            raise CannotError(f"podman has a user's store here, {self._root}", "run it as root")
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open between two calls."""

    def paths(self) -> list[str]:
        """Directories on the file systems of images and of writable layers, which podman has together."""
        return [self._root]

    def dead(self) -> Choice:
        """Containers that may go, and pods all of whose containers are dead; each pod goes with its containers."""
        with _understood("ps"):
            return self._dead()

    def _dead(self) -> Choice:
        listed = self._sized_containers()
        policies = self._restart_policies([one["Id"] for one in listed if one["State"] in _DEAD])
        pods = {one["Id"]: one for one in self._list("pod", "ps")}
        containers = [_container(one, policies) for one in listed if not one["Pod"]]
        choice = dead_containers(containers, [])
        members: dict[str, list[Container]] = {ident: [] for ident in pods}
        units = {ident: _started_by(one.get("Labels")) for ident, one in pods.items()}
        for one in listed:
            if one["Pod"] in members and one.get("IsInfra"):
                units[one["Pod"]] = units[one["Pod"]] or _started_by(one.get("Labels"))
            elif one["Pod"] in members:
                members[one["Pod"]].append(_container(one, policies))
        for ident, unit in units.items():
            members[ident] = [replace(one, keep=one.keep or unit) for one in members[ident]]
        whole = [_whole(pod, members[ident]) for ident, pod in pods.items()]
        dead = dead_containers([one for _, their in whole for one in their], [pod for pod, _ in whole], last=False)
        # A pod is removed as one: what of its containers would go alone stays with it.
        gone = {one.id for one in dead.go if one.kind == POD}
        sizes = {pod.id: [one.size for one in their] for pod, their in whole}
        go = (_sized(one, sizes[one.id]) for one in dead.go if one.id in gone)
        return Choice((*choice.go, *go), (*choice.kept, *dead.kept))

    def images(self) -> list[Image]:
        with _understood("images"):
            found = {one["Id"]: one for one in self._list("images")}  # one line for each name
            return [_image(one) for one in found.values()]

    def used(self) -> set[str]:
        """What containers, running or not, and those of a build (`--external`) call their images and volumes.

        podman removes an image that a container has as a volume, and the directory in it is empty then (4.3).
        """
        with _understood("ps"):
            listed = self._list("ps", "--all", "--external")
            used = {name for one in listed for name in (one.get("ImageID"), one.get("Image")) if name}
            self._look_at_volumes([one["Id"] for one in listed if one["Id"] not in self._volumes])
            return used.union(*(self._volumes[one["Id"]] for one in listed))

    def check_removal(self) -> None:
        """Raises CannotError where podman would leave half of a layer, and then not even list any (4.3)."""
        if not has(CAP_FOWNER):
            remedy = "run it as root with CAP_FOWNER (systemd: CapabilityBoundingSet=)"
            raise CannotError("podman cannot remove files of others in a sticky directory, such as /tmp", remedy)

    def remove(self, one: Garbage) -> None:
        """Remove it. Never by force: podman itself refuses what runs, and images that a container uses."""
        if one.kind == CONTAINER:
            self._run("rm", one.id)
        elif one.kind == POD:
            self._run("pod", "rm", one.id)
        else:
            self._remove_image(one)

    def _remove_image(self, one: Garbage) -> None:
        """By the id: a name may be another image's by now, one that was just pulled. By that podman refuses an image
        with several names.
        """
        if len(one.names) <= 1:
            self._run("rmi", one.id)
        elif set(self._run("image", "inspect", "--format", "{{.Id}}", *one.names).split()) == {one.id}:
            self._run("rmi", *one.names)
        else:
            raise MonitorError("one of its names is another image's by now", "")

    def settle(self) -> None:
        """podman has removed what it says it has."""

    # what there is

    def _restart_policies(self, idents: Sequence[str]) -> Mapping[str, str]:
        """By id; a container without one in the answer has gone meanwhile."""
        if not idents:
            return {}
        line = "{{.Id}} {{.HostConfig.RestartPolicy.Name}}"
        answer = self._run("container", "inspect", "--format", line, *idents, check=False)
        pairs = [row.partition(" ") for row in answer.splitlines()]
        return {ident: policy.strip() for ident, _, policy in pairs}

    def _sized_containers(self) -> list[dict[str, Any]]:
        """For a size podman walks all that the container wrote, and fails for all where it cannot for one. What may go
        does not depend on it.
        """
        try:
            return self._list("ps", "--all", "--size")
        except MonitorError:
            return self._list("ps", "--all")

    def _look_at_volumes(self, idents: Sequence[str]) -> None:
        """Take in which images these have as volumes: that is fixed when a container is made."""
        if not idents:
            return
        answer = self._run("container", "inspect", "--format", "{{.Id}} {{json .Mounts}}", *idents, check=False)
        found = {}
        for ident, _, mounts in (row.partition(" ") for row in answer.splitlines()):
            sources = [one["Source"] for one in json.loads(mounts) or () if one["Type"] == "image"]
            # As it was written: part of a name, or of an id.
            ids = self._run("image", "inspect", "--format", "{{.Id}}", *sources, check=False) if sources else ""
            found[ident] = {*sources, *ids.split()}
        silent = set(idents) - found.keys()  # gone meanwhile, or of a build
        if silent and (unknown := silent & {one["Id"] for one in self._list("ps", "--all")}):
            raise MonitorError(f"podman container inspect: nothing of {min(unknown)[:12]}", "look at it with podman")
        self._volumes |= found | {ident: set() for ident in silent}

    # calls

    def _list(self, *arguments: str) -> list[dict[str, Any]]:
        found = self._ask(*arguments)
        if not isinstance(found, list):
            raise MonitorError(f"podman {' '.join(arguments)}: not a list", "report this, with podman's version")
        return found

    def _ask(self, *arguments: str) -> Any:
        answer = self._run(*arguments, "--format", "json", within_s=QUESTION_S)
        try:
            return json.loads(answer or "[]")
        except (ValueError, RecursionError):
            raise MonitorError(f"podman {' '.join(arguments)}: no JSON", "report this, with podman's version") from None

    def _run(self, *arguments: str, within_s: float | None = None, check: bool = True) -> str:
        left = max(0.01, self._deadline - time.monotonic())
        what = " ".join(("podman", *itertools.takewhile(lambda word: word.isalpha(), arguments)))
        try:
            done = subprocess.run(
                [self._program, *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=left if within_s is None else min(left, within_s),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StoreTimeout(f"{what} does not end", "is another podman at work?") from None
        except OSError as error:
            raise MonitorError(f"{what}: {error.strerror}", "") from None
        if check and done.returncode:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise MonitorError(f"{what}: {said[:300]}", "")
        if len(done.stdout) > MOST_BYTES:
            raise MonitorError(f"{what}: an answer of {len(done.stdout)} bytes", "remove some by hand")
        return done.stdout.decode(errors="replace")


def _environment() -> dict[str, str]:
    """Of ours what podman needs. Root's podman is meant: no service elsewhere, and no file that is a user's. Raises
    ChangeableError.
    """
    files = {name: os.environ[name] for name in _FILES if name in os.environ}
    for path in files.values():
        check_alone(Path(path))
    return {"PATH": search_path(), "HOME": pwd.getpwuid(os.geteuid()).pw_dir, **files}


@contextmanager
def _understood(what: str) -> Iterator[None]:
    """An answer of another form is one line too."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise MonitorError(f"podman {what}: not understood ({why})", "report this, with podman's version") from None


def _started_by(labels: Mapping[str, str] | None) -> str:
    """Why systemd's own stay; "" for others. An image may write what it likes into a label."""
    unit = (labels or {}).get(_UNIT)
    return "" if unit is None else f"systemd starts it ({ascii(unit)[1:-1][:100]})"


def _container(one: Mapping[str, Any], policies: Mapping[str, str]) -> Container:
    labels = one.get("Labels") or {}
    state = EXITED if one["State"] in _DEAD else RUNNING if one["State"] == "running" else OTHER
    keep = _started_by(labels)
    if not keep and policies.get(one["Id"], "unknown") not in _RESTED:
        keep = f"restart policy {policies.get(one['Id'], 'unknown')}"
    return Container(
        id=one["Id"],
        name=one["Names"][0] if one.get("Names") else one["Id"][:12],
        state=state,
        pod=one["Pod"],
        order=(0, int(one.get("Created") or 0)),
        size=(one.get("Size") or {}).get("rwSize"),
        labels=labels,
        keep=keep,
    )


def _whole(pod: Mapping[str, Any], members: list[Container]) -> tuple[Pod, list[Container]]:
    """A pod is dead when podman says so of all of it, the container that holds its namespaces too."""
    made = Pod(
        id=pod["Id"],
        uid=pod["Id"],
        name=pod["Name"],
        alive=pod["Status"] != "Exited" or not members,
        labels=pod.get("Labels") or {},
    )
    return made, members


def _sized(pod: Garbage, sizes: Sequence[int | None]) -> Garbage:
    return pod._replace(size=None if None in sizes else sum(size or 0 for size in sizes))


def _image(one: Mapping[str, Any]) -> Image:
    names = tuple(one.get("Names") or ())
    keep = ""
    if one.get("ReadOnly"):
        keep = "in a store that is read only"
    elif one.get("IsManifestList"):
        keep = "a manifest list"
    elif is_pause(names):
        keep = "the image of sandboxes"
    # Layers that others have too are in it: `SharedSize` is 0 in every list (4.3), and `system df` speaks no JSON.
    return Image(one["Id"], names, tuple(one.get("RepoDigests") or ()), one.get("Size"), one.get("Labels") or {}, keep)

"""The configuration of the kubelet of this node, read from the kubelet itself: nothing has to be configured twice."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from monitor.errors import MonitorError
from monitor.kube.client import NODES, ApiClient
from monitor.kube.kubelet import KubeletClient
from monitor.pods.access import Access
from monitor.pods.installations import NodeKubelet
from monitor.policy.configuration import ENFORCE, HARD, TEXT_MAPS, Given, Source
from monitor.policy.releases import CURRENT, era_of
from monitor.policy.translate import BOOLEANS, FIELDS
from monitor.settings.options import FEATURE_GATES, KUBELET_KEYS, SETTINGS

_shown = partial(json.dumps, sort_keys=True, default=str)
#: Seconds that the kubelet may take to answer.
_TIMEOUT_S = 3.0
#: Seconds to connect to the API server: a start waits for it.
_CONNECT_S = 1.0
#: What /configz leaves out where it is empty (omitempty), though it has a default: then it is empty, not the default.
_EMPTY: Mapping[str, Any] = {HARD: {}, ENFORCE: []}


def kubelet_sources(access: Access, on_unread: Callable[[str], object] = lambda _: None) -> tuple[Source, ...]:
    """What is in force in the kubelet, first of all others: its /configz, where it may be asked, else its file, its
    drop-ins and the flags of its installer, each over the one before. Empty where nothing of it can be read.
    ``on_unread`` hears why, where neither its file nor /configz can be read: the defaults are a guess.
    """
    kubelet = access.kubelet
    if not kubelet.is_there:
        return ()
    if kubelet.refused:
        on_unread(kubelet.refused)
        return ()
    try:
        return (_configz(access),)
    except MonitorError as error:
        if kubelet.unread:
            on_unread(f"{kubelet.unread}; /configz: {error}")
    files = [(kubelet.config_path, kubelet.config)] if kubelet.config_path else []
    sources = [Source(f"the kubelet's {path}", _known(content)) for path, content in (*files, *kubelet.drop_ins)]
    if flags := _flags(kubelet):
        sources.append(Source(f"the kubelet's flags ({kubelet.installation})", _replacing(flags, sources)))
    if sources and not files:
        # The first is the file, whose defaults count: a drop-in or flag alone is laid over an empty one.
        sources.insert(0, Source(f"the kubelet ({kubelet.installation}, without a file)", {}))
    return tuple(sources)


def kubelet_release(access: Access) -> Given | str:
    """The release of this node's kubelet by the version in its Node object; the reason where that cannot be had."""
    if access.kubelet.refused:
        return access.kubelet.refused
    try:
        cluster, _ = access.api_server()
        with closing(ApiClient(cluster, timeout_s=_TIMEOUT_S, connect_s=_CONNECT_S)) as client:
            version = str(client.get(NODES, access.node)["status"]["nodeInfo"]["kubeletVersion"])
    except MonitorError as error:
        return str(error)
    except (KeyError, TypeError):
        return f"the Node object {access.node} at {cluster.server} has no kubeletVersion"
    found = re.fullmatch(r"v(\d{1,4})\.(\d{1,4})\.[\w.+-]{1,60}", version, re.ASCII)
    if found is None:
        return f"the Node object {access.node} at {cluster.server} has another kubeletVersion than v1.2.3"
    return Given(era_of((int(found[1]), int(found[2]))), f"the kubelet's version {version} at {cluster.server}")


def differences(options: Mapping[str, Given], kubelet: tuple[Source, ...]) -> tuple[str, ...]:
    """One line for each option that differs from the kubelet; ``options``: by option name, parsed."""
    lines = []
    for setting in SETTINGS:
        given = options.get(setting.name)
        theirs = next((s for s in reversed(kubelet) if setting.kubelet_key in s.content), None)
        if given is None or theirs is None:
            continue
        value = theirs.content[setting.kubelet_key]
        if isinstance(value, dict):
            value = {name: text for name, text in value.items() if text is not None}
        try:
            same = setting.parse(value) == given.value
        except ValueError:  # one of another release, perhaps
            same = False
        if not same:
            theirs_is = f"{theirs.name} has {setting.kubelet_key} {_shown(value)}"
            lines.append(f"{given.origin} is {_shown(given.value)}; {theirs_is}")
    return tuple(lines)


def _configz(access: Access) -> Source:
    """The kubelet's own settings. MonitorError where it cannot be asked."""
    cluster, whose = access.api_server()
    if not cluster.credentials.current():
        raise MonitorError(f"{whose}: no token, and a kubelet lets nobody in with its own certificate")
    server = access.kubelet_server(credentials=cluster.credentials)
    with closing(KubeletClient(server, timeout_s=_TIMEOUT_S)) as client:
        return Source(f"the kubelet's /configz at {access.kubelet.url}", {**_EMPTY, **_known(client.configz())})


def _known(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: content[key] for key in (*KUBELET_KEYS, FEATURE_GATES) if content.get(key) is not None}


def _replacing(flags: Mapping[str, Any], before: Sequence[Source]) -> dict[str, Any]:
    """Flags as a drop-in: what takes the place of a whole map takes its other entries away (null)."""
    found = dict(flags)
    for key in TEXT_MAPS:
        if key in found:
            others = set(CURRENT.default_hard) if key == HARD else set()
            others.update(*(source.content.get(key) or () for source in before))
            found[key] = {**dict.fromkeys(sorted(others)), **found[key]}
    return found


def _flags(kubelet: NodeKubelet) -> dict[str, Any]:
    """Flags of its installer that are keys of its configuration too, as the file would have them."""
    found: dict[str, Any] = {}
    if gates := kubelet.flags.get("feature-gates"):
        pairs = (pair.partition("=") for pair in gates.split(","))
        found[FEATURE_GATES] = {name.strip(): BOOLEANS.get(text.strip()) for name, _, text in pairs}
    for setting in SETTINGS:
        text = kubelet.flags.get(setting.name)
        if text is None or not setting.kubelet_key:
            continue
        _, read = FIELDS.get(setting.name, (setting.kubelet_key, str))
        try:
            value = read(text)
            setting.parse(value)
        except ValueError:  # PolicyError is one
            continue  # the kubelet itself refuses it
        found[setting.kubelet_key] = value
    return found

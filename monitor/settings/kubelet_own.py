"""The configuration of the kubelet of this node, read from the kubelet itself: nothing has to be said twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from monitor.errors import MonitorError
from monitor.kube.kubelet import KubeletClient
from monitor.pods.access import Access
from monitor.pods.kubelet_process import KubeletProcess
from monitor.policy.configuration import TEXT_MAPS, Given, Source
from monitor.policy.errors import PolicyError
from monitor.policy.thresholds import parse_flag_map
from monitor.settings.options import KUBELET_KEYS, SETTINGS

#: Seconds that the kubelet may take to answer.
_TIMEOUT_S = 3.0


def kubelet_sources(access: Access) -> tuple[Source, ...]:
    """What is in force in the kubelet, first of all others: its /configz, where it may be asked, else its file, and the
    flags of its process over it. Empty where there is no kubelet, and where nothing of it can be read.
    """
    kubelet = access.kubelet
    if not kubelet.is_there:
        return ()
    found = _configz(access) if kubelet.pid else None
    if found is not None:
        return (found,)
    file = (Source(f"the kubelet's {kubelet.config_path}", _known(kubelet.config)),) if kubelet.config_path else ()
    flags = _flags(kubelet)
    return (*file, Source(f"the kubelet's command line (process {kubelet.pid})", flags)) if flags else file


def differences(said: Mapping[str, Given], kubelet: tuple[Source, ...]) -> tuple[str, ...]:
    """One line for each option that says something else than the kubelet; ``said``: by option name, parsed."""
    lines = []
    for setting in SETTINGS:
        given = said.get(setting.name)
        theirs = next((s for s in reversed(kubelet) if setting.kubelet_key in s.content), None)
        if given is None or theirs is None:
            continue
        value = theirs.content[setting.kubelet_key]
        try:
            same = setting.parse(value) == given.value
        except ValueError:  # one of another release, perhaps
            same = False
        if not same:
            theirs_is = f"{theirs.name} has {setting.kubelet_key} {_shown(value)}"
            lines.append(f"{given.origin} is {_shown(given.value)}; {theirs_is}")
    return tuple(lines)


def _configz(access: Access) -> Source | None:
    """What the kubelet says of itself, if we may ask."""
    try:
        cluster, _ = access.api_server()
        if not cluster.credentials.current().token:
            return None
        client = KubeletClient(access.kubelet_server(credentials=cluster.credentials), timeout_s=_TIMEOUT_S)
    except MonitorError:
        return None
    try:
        return Source(f"the kubelet's /configz at {access.kubelet.url}", _known(client.configz()))
    except MonitorError:
        return None
    finally:
        client.close()


def _known(content: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that are ours; a kubelet writes null and {} where nothing is set."""
    return {key: content[key] for key in KUBELET_KEYS if content.get(key) not in (None, {}, [])}


def _flags(kubelet: KubeletProcess) -> dict[str, Any]:
    """Flags of its process that are keys of its configuration too, as the file would have them."""
    found: dict[str, Any] = {}
    for setting in SETTINGS:
        text = kubelet.flags.get(setting.name)
        if text is None or not setting.kubelet_key:
            continue
        operator = "<" if setting.name in ("eviction-hard", "eviction-soft") else "="
        try:
            value = parse_flag_map(text, operator) if setting.kubelet_key in TEXT_MAPS else setting.parse(text)
        except (PolicyError, ValueError):
            continue  # the kubelet itself refuses it
        if setting.kubelet_key in TEXT_MAPS or isinstance(value, bool):
            found[setting.kubelet_key] = value
        else:
            found[setting.kubelet_key] = int(text) if text.lstrip("-").isdigit() else text
    return found


def _shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)

"""What follows from a kubelet's configuration: where it serves."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.pods.node_kubelet import NodeKubelet


@pytest.mark.parametrize(
    ("config", "flags", "url", "read_only"),
    [
        ({}, {}, "https://127.0.0.1:10250", ""),
        ({"address": "0.0.0.0", "port": 1234}, {}, "https://127.0.0.1:1234", ""),
        ({"address": "10.1.2.3", "readOnlyPort": 10255}, {}, "https://10.1.2.3:10250", "http://10.1.2.3:10255"),
        ({"address": "fd00::1"}, {"read-only-port": "1"}, "https://[fd00::1]:10250", "http://[fd00::1]:1"),
        ({"port": "x", "readOnlyPort": True}, {}, "https://127.0.0.1:10250", ""),
        ({"port": 1}, {"port": "2"}, "https://127.0.0.1:2", ""),  # a flag wins
        ({"readOnlyPort": 10255}, {"read-only-port": "0"}, "https://127.0.0.1:10250", ""),
    ],
)
def test_where_it_serves(config: dict[str, Any], flags: dict[str, str], url: str, read_only: str) -> None:
    found = NodeKubelet(config=config, flags=flags)
    assert (found.url, found.read_only_url) == (url, read_only)

"""The figures of the daemon: the hot process gets no request for them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from monitor.kernel.cgroupfs import Hierarchy, cgroup_id
from monitor.kernel.domains import Reading
from monitor.settings.config import RunConfig
from tests.limited import write
from tests.side.parts import Parts

MIB = 1 << 20


#: Of the node, by the counters of the programs: 10 MiB of the 40 are inactive page cache.
COUNTED = Reading(40 * MIB, 10 * MIB, 5 * MIB)


def test_the_counters_as_they_are_and_the_files_where_they_stand_still(tmp_path: Path) -> None:
    stat = f"inactive_file {3 * MIB}\nactive_file {2 * MIB}\n"
    files: dict[str, int | str] = {"memory.current": 20 * MIB, "memory.max": 64 * MIB, "memory.stat": stat}
    node = write(tmp_path / "node", files)
    sent: list[Any] = []
    config = RunConfig(node_cgroup=str(node))
    table = SimpleNamespace(read={cgroup_id(node): COUNTED}.get)
    parts = Parts(config, Hierarchy(2, tmp_path), 64 * MIB, table=table)
    stats, respond = parts.figures.stats, parts.summary.respond
    parts.figures.send = lambda message: sent.append(message) or False  # type: ignore[func-returns-value]

    def usage(response: Any) -> int:
        found: int = json.loads(response.body)["node"]["memory"]["usageBytes"]
        return found

    assert (usage(respond()), sent) == (20 * MIB, []), "never swept: the files"
    stats.set("wait_ns", 500_000_000)
    assert parts.figures.bound() == (config.max_fill_rate // 2, 500_000_000)
    stats.set("armed", 1)
    assert (usage(respond()), sent) == (40 * MIB, []), "armed: they follow every charge"
    stats.set("armed", 0)
    assert (usage(respond()), sent) == (20 * MIB, [])

"""What the daemon counts of the clean-ups that it ran."""

from pathlib import Path

from monitor.actions.reclaim import DONE, FAILED
from monitor.policy.layout import DELETE_CONTAINERS, DELETE_IMAGES
from monitor.settings.config import RunConfig
from monitor.side.disk_watch import Cleanup
from monitor.side.export.log import Log
from monitor.side.export.metrics import reclaim_metrics
from tests import live
from tests.filesystems import Mounts


def test_what_came_back_is_counted(mounts: Mounts) -> None:
    disk = mounts.tmpfs("store", 16 << 20)
    (disk / "dead").write_bytes(bytes(8 << 20))
    config = RunConfig(enforce=True, reclaim_images=("rm", str(disk / "dead")))
    done: list[tuple[str, ...]] = []
    cleanup = Cleanup(config, [disk, disk, Path("/none")], done.append, Log("logfmt"))
    for number in (1, 2):  # the second finds nothing to remove
        cleanup.request([DELETE_CONTAINERS, DELETE_IMAGES])
        live.until(lambda: len(done) == number, "the end of the clean-up")  # noqa: B023 - used before the next turn
    cleanup.close(live.TIMEOUT_S)
    samples = [one for metric in reclaim_metrics(cleanup) for one in metric.samples]
    assert {(one.name, *one.labels.values()): one.value for one in samples if one.value} == {
        ("outrace_reclaim_runs_total", DELETE_IMAGES, DONE): 1.0,
        ("outrace_reclaim_runs_total", DELETE_IMAGES, FAILED): 1.0,
        ("outrace_reclaim_freed_bytes_total", DELETE_IMAGES): float(8 << 20),
        ("outrace_reclaim_freed_inodes_total", DELETE_IMAGES): 1.0,
    }

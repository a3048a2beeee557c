"""What the tests of the disk watch share."""

from tests.daemon.disk_bench import bench as bench

"""Everyday load for a moment: nothing to report. (For an hour: `outrace bench soak`.)"""

import json
import shutil
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from monitor.errors import CannotError, ConfigError
from monitor.lab.bench_soak import KINDS, Watched, room, soak
from monitor.lab.receivers import Receiver


def test_no_such_load() -> None:
    result = CliRunner().invoke(soak, ["--load", "copy,fish"])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith("--load copy,fish: 'fish' is no kind of load; name some of copy, build, ")


def test_a_directory_without_room_is_refused_before_anything_begins(tmp_path: Path) -> None:
    full = CliRunner().invoke(soak, ["--directory", "/proc"])
    assert isinstance(full.exception, CannotError)
    assert str(full.exception).startswith("--directory /proc: 0 are free, and the files take 1.3Gi; name another ")
    gone = CliRunner().invoke(soak, ["--directory", str(tmp_path / "gone")])
    assert isinstance(gone.exception, ConfigError)
    assert room(("breathe", "stops")) == 0


def test_the_receiver_counts_by_path() -> None:
    with Receiver() as receiver:
        for path in ("node", "machine"):
            body = json.dumps({"name": path}).encode()
            with urllib.request.urlopen(f"{receiver.url}/{path}", body, timeout=60) as answer:
                assert answer.status == 200
    assert [post[1:] for post in receiver.posts] == [("/node", {"name": "node"}), ("/machine", {"name": "machine"})]


@pytest.mark.parametrize("found", [{"decisions": 1}, {"lost": {"x": 1}}, {"alerts": [{}]}, {"incidents": [{}]}])
def test_anything_reported_is_not_quiet(found: dict[str, object]) -> None:
    assert Watched("node", foreign_incidents=3, foreign_alerts=3).quiet
    assert not Watched("node", **found).quiet  # type: ignore[arg-type]


@pytest.mark.kernel
@pytest.mark.once
def test_twenty_seconds(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < room(tuple(KINDS)):
        pytest.skip(f"{tmp_path} has too little room: a guest's disk has 1 GiB")
    result = CliRunner().invoke(soak, ["--minutes", "0.33", "--directory", str(tmp_path), "-o", "json"])
    assert result.stdout, f"{result.output}{result.exception!r}"  # an exception is an exit code of 1, too
    assert result.exit_code in (0, 1)
    made = json.loads(result.stdout)
    assert result.exit_code == 0, made
    assert made["clean"] is True
    assert [row["name"] for row in made["results"]] == ["node", "machine"]
    for row in made["results"]:
        assert (row["incidents"], row["alerts"], row["decisions"], row["lost"]) == (0, {}, 0, {}), row
        assert row["rss_bytes"] > 0
    for what in (
        "pods_made_and_removed",
        "files_copied",
        "files_made",
        "processes",
        "breaths",
        "tmpfs_files",
        "stopped_by_sigterm",
    ):
        assert made["load"][what] > 0, what
    assert made["load"]["bytes_through_cache"] > 512 << 20, "more than the node holds"
    assert list(tmp_path.iterdir()) == []

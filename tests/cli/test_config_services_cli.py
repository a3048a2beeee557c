"""`outrace config` where services are pods: no disk evicts one."""

import pytest

from tests.cli.test_config_cli import shown


def test_where_services_are_pods_no_disk_evicts(capsys: pytest.CaptureFixture[str]) -> None:
    """A threshold that nothing acts on is not shown as one in force, and who gave it is told."""
    data = shown(capsys, "--pods", "services")
    assert [row["signal"] for row in data["thresholds"]] == ["memory.available"]
    assert data["warnings"] == []
    given = ("--pods", "services", "--eviction-hard", "memory.available<300Mi,nodefs.available<10%,pid.available<9")
    data = shown(capsys, *given)
    assert [row["signal"] for row in data["thresholds"]] == ["memory.available", "pid.available"]
    found = [line for line in data["warnings"] if "no effect" in line]
    assert found == [
        "--eviction-hard: nodefs.available: has no effect: no service is killed for a disk, its files would stay"
    ]


def test_auto_is_shown_as_what_it_comes_to_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.pods.source.is_services", lambda _: True)
    data = shown(capsys)
    assert [row["signal"] for row in data["thresholds"]] == ["memory.available"]
    assert {row["name"]: row["value"] for row in data["settings"]}["pods"] == "auto"

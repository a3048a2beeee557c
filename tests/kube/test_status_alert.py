"""The status of an evicted pod that nobody takes is an alert: `Cluster`, `Races`, `AlertSender`, a webhook."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.kube.cluster import ClusterConfig
from monitor.settings.config import RunConfig
from monitor.side.alerts.rules import STATUS_NOT_TAKEN
from monitor.side.cluster.cluster import Cluster, report_status
from monitor.side.cluster.status_writer import AWAY, TAKEN
from monitor.side.export.log import Log
from monitor.side.races import Races
from monitor.side.worker import Worker
from tests.alerts.services import Webhook
from tests.kube.fake_apiserver import FakeApiServer, pod
from tests.kube.fake_node import relist
from tests.kube.test_status_writer import evicted
from tests.side.views import view as side_view
from tests.waiting import until


def test_a_status_that_is_not_taken_is_an_alert_with_the_name_of_its_pod(
    config: ClusterConfig, api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is taken is none."""
    monkeypatch.setattr("monitor.side.cluster.status_writer.HOLD_S", 0.0)
    hook, files = Webhook(tmp_path), Worker("files")
    settings = RunConfig(state_dir=str(tmp_path / "state"), webhooks=(hook.url,))
    view = side_view(settings, cgroupfs.detect(), 1 << 30)
    view.races = Races(view)
    cluster = Cluster(config, "node-1", tmp_path, files, Log(), on_status_not_taken=partial(report_status, view))
    with hook.running():
        view.races.start()
        cluster.start()
        try:
            api.store.create("pods", pod("web"))
            cluster.evicting(evicted(api), time.monotonic_ns())
            until(lambda: api.store.get(("pods", "default", "web"))["status"]["phase"] == "Failed", "it is written")
            assert relist(api, "web") == "Failed"
            until(lambda: cluster.statuses.tally.fates[TAKEN] == 1, "the kubelet has taken it")
            api.store.create("pods", pod("db"))
            cluster.evicting(evicted(api, "db"), time.monotonic_ns() - int(11e9))  # too long ago for a status
            until(lambda: len(hook.got()) == 1, "the alert")
        finally:
            cluster.close()
            files.close(1.0)
            view.races.close(10.0, 10.0)
    (alert,) = hook.got()
    assert (alert["name"], alert["status"]) == (STATUS_NOT_TAKEN, "firing")
    labels = {key: alert["labels"][key] for key in ("namespace", "pod", "outcome", "severity")}
    assert labels == {"namespace": "default", "pod": "db", "outcome": AWAY, "severity": "warning"}
    assert alert["annotations"]["summary"].startswith("default/db: the API server took no status")

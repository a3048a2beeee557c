"""`outrace evicted list` and `delete` as they are typed."""

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from monitor.cli.evicted import format_age
from tests.evicted.made import evicted, names, owned, put
from tests.kube import faults
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_apiserver import pod as running

Outrace = Callable[..., CompletedProcess[str]]


@pytest.fixture
def cluster(api: FakeApiServer) -> FakeApiServer:
    web = owned("ReplicaSet", "web-5d9c", labels={"pod-template-hash": "5d9c", "app": "web"})
    other = evicted("lost")
    other["status"]["reason"] = "NodeLost"
    database, job = owned("StatefulSet", "db"), owned("Job", "import")
    put(api, other, running("live"), evicted("bare", "lab", 30.0))
    put(api, evicted("web-5d9c-a", "shop", 73 * 86400.0, **web), evicted("web-5d9c-b", "shop", 7200.0, **web))
    put(api, evicted("db-0", "shop", 600.0, **database), evicted("import-x", **job))
    return api


def test_list_shows_them_and_their_owners(cluster: FakeApiServer, outrace: Outrace) -> None:
    done = outrace("list", "--older-than", "5m")
    assert done.returncode == 0
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["POD", "OWNER", "NODE", "AGE", "STAYS"]
    assert [row.split()[:4] for row in rows[:4]] == [
        ["shop/web-5d9c-a", "Deployment/web", "node-1", "73d"],
        ["shop/web-5d9c-b", "Deployment/web", "node-1", "2h"],
        ["default/import-x", "Job/import", "node-1", "60m"],
        ["shop/db-0", "StatefulSet/db", "node-1", "10m"],
    ]
    assert rows[4].split()[:3] == ["lab/bare", "none", "node-1"]
    assert rows[4].endswith("not old enough")
    made = json.loads(outrace("list", "-o", "json").stdout)
    assert made["owners"]["Deployment"] == {"pods": 2}
    assert 25 <= made["pods"][-1]["age_s"] < 3600


def test_list_says_how_a_pod_without_a_reason_was_recognised(api: FakeApiServer, outrace: Outrace) -> None:
    lost = evicted("web-1", "shop")
    del lost["status"]["reason"]
    lost["status"]["conditions"][0]["status"] = "True"
    put(api, lost, evicted("web-2", "shop"))
    (line,) = [line for line in outrace("list").stdout.splitlines() if "has no reason" in line]
    assert line.startswith(
        "shop/web-1: has no reason; evicted by its condition DisruptionTarget, TerminationByKubelet: The node was low"
    )
    found = {pod["name"]: pod["evidence"] for pod in json.loads(outrace("list", "-o", "json").stdout)["pods"]}
    assert found == {"web-1": "condition DisruptionTarget, TerminationByKubelet", "web-2": "reason Evicted"}


def test_with_yes_those_are_deleted_that_the_dry_run_showed(cluster: FakeApiServer, outrace: Outrace) -> None:
    criteria, before = ("--older-than", "5m", "-n", "shop", "--owner-kind", "deployment"), names(cluster)
    dry = outrace("delete")
    assert (dry.returncode, names(cluster), cluster.seen("DELETE")) == (0, before, [])
    assert "dry run: 5 of 5 evicted pods would be deleted; --yes does it" in dry.stderr
    made = json.loads(outrace("delete", "-o", "json", *criteria).stdout)
    shown = {f"{one['namespace']}/{one['name']}" for one in made["pods"]}
    done = outrace("delete", "--yes", *criteria)
    assert (made["dry_run"], done.returncode, done.stdout) == (True, 0, "2 of 2: 2 deleted\n")
    assert before - names(cluster) == shown == {"shop/web-5d9c-a", "shop/web-5d9c-b"}


def test_a_failure_is_exit_code_1_with_the_rule(cluster: FakeApiServer, outrace: Outrace) -> None:
    cluster.forbidden.add(("delete", "pods"))
    done = outrace("delete", "--yes")
    assert done.returncode == 1
    assert 'add to the Role or ClusterRole: {apiGroups: [""], resources: ["pods"], verbs: ["delete"]}' in done.stderr
    cluster.forbidden = {("list", "pods")}
    done = outrace("list")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("outrace: error: list pods: HTTP 403")


def test_ended_early_it_reports_how_far_it_was(cluster: FakeApiServer, outrace: Outrace) -> None:
    cluster.fail(faults.status(401, "Unauthorized"), times=9, method="DELETE", path="db-0")
    done = outrace("delete", "--yes")
    assert done.returncode == 1
    assert done.stderr.startswith("ended early: 3 of 5: 3 deleted; run it again to go on\noutrace: error: ")
    assert json.loads(outrace("list", "-o", "json").stdout)["found"] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("-n", ""),
        ("--owner-kind", ""),
        ("--older-than", "5"),
        ("--keep-per-owner", "3"),
        ("--rate", "nan"),
        ("--retry", "1m"),
    ],
)
def test_what_is_refused(cluster: FakeApiServer, outrace: Outrace, arguments: tuple[str, ...]) -> None:
    done = outrace("delete", "--yes", *arguments)
    assert (done.returncode, cluster.asked) == (2, [])
    assert arguments[0] in done.stderr


def test_ages_are_in_one_unit() -> None:
    ages = [0, 119, 120, 7200, 172799, 172800, None]
    assert [format_age(age) for age in ages] == ["0s", "119s", "2m", "2h", "47h", "2d", "unknown"]

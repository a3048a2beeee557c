"""Rule file, dashboard, example configurations and runbooks: that they fit each other and what we export."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from monitor.kernel import cgroupfs, meminfo
from monitor.kube.cluster import ClusterConfig, Server
from monitor.settings.config import RunConfig
from monitor.side.alerts.rules import NAMES
from monitor.side.alerts.send import RUNBOOK
from monitor.side.export.metrics import Metrics
from monitor.side.process_watch import ProcessWatch
from tests.alerts.services import DEPLOY, binary
from tests.commands import ROOT, run
from tests.log_lines import ignored
from tests.side.parts import Parts

RULES = DEPLOY / "prometheus" / "outrace.rules.yml"
UNIT_TESTS = DEPLOY / "prometheus" / "outrace.rules.test.yml"
DASHBOARD = DEPLOY / "grafana" / "outrace.json"


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def expressions() -> dict[str, str]:
    """Where -> PromQL."""
    board = json.loads(DASHBOARD.read_text())
    found = {f"rule {name}": rule["expr"] for name, rule in rules().items()}
    found |= {f"annotation {note['name']}": note["expr"] for note in board["annotations"]["list"]}
    found |= {f"variable {v['name']}": v["definition"] for v in board["templating"]["list"] if "definition" in v}
    for panel in board["panels"]:
        found |= {f"panel {panel['title']} {t['refId']}": t["expr"] for t in panel.get("targets", ())}
    return found


def accepted(program: str, *arguments: str | Path) -> None:
    result = run(binary(program), *map(str, arguments))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_rules_and_examples_are_valid_and_the_unit_tests_pass() -> None:
    accepted("promtool", "check", "rules", RULES)
    accepted("promtool", "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    accepted("amtool", "check-config", DEPLOY / "alertmanager" / "alertmanager.yml")
    accepted("promtool", "test", "rules", UNIT_TESTS)


def test_what_outrace_pushes_inhibits_the_same_alert_of_a_rule() -> None:
    example = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())
    by_source = {"source_matchers": ['source="push"'], "target_matchers": ['source="rule"']}
    assert {**by_source, "equal": ["alertname", "node"]} in example["inhibit_rules"]


def test_every_alert_is_seen_to_fire_not_to_fire_and_to_end() -> None:
    seen: dict[str, list[bool]] = {name: [] for name in rules()}
    for case in yaml.safe_load(UNIT_TESTS.read_text())["tests"]:
        for check in case["alert_rule_test"]:
            seen[check["alertname"]].append(bool(check["exp_alerts"]))
    for name, fired in seen.items():
        assert re.search("01+0", "".join(str(int(one)) for one in fired)), name


def test_the_unit_tests_notice_a_rule_that_is_wrong(tmp_path: Path) -> None:
    """Each rule made to fire always, and never, alone in its file: its own tests must fail both times."""
    tests, files = yaml.safe_load(UNIT_TESTS.read_text()), list[Path]()
    for name, rule in rules().items():
        cases = [
            {**case, "alert_rule_test": own}
            for case in tests["tests"]
            if (own := [one for one in case["alert_rule_test"] if one["alertname"] == name])
        ]
        always = re.sub(r"(> 0\.5|> 0|> 45|== 1|== 0|> outrace_memory_capacity_bytes)", ">= 0", str(rule["expr"]))
        assert always != rule["expr"]
        for how, wrong in (("never", "vector(1) > 2"), ("always", always)):
            path = tmp_path / f"{name}-{how}"
            path.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [{**rule, "expr": wrong}]}]}))
            files.append(path.with_suffix(".test"))
            files[-1].write_text(yaml.safe_dump({**tests, "rule_files": [path.name], "tests": cases}))
    command = [binary("promtool"), "test", "rules", *files]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    _, *found = re.split(r"Unit Testing: +", done.stdout)
    assert len(found) == len(files)
    for path, output in zip(files, found, strict=True):
        assert f"alertname: {path.name.partition('-')[0]}" in output, output


def test_the_rules_and_their_page_have_every_alert() -> None:
    assert set(NAMES) <= set(rules())
    rows = re.findall(r"^\| (Outrace\w+) \|.*?(; rule only)? \|$", (ROOT / "docs" / "alerts.md").read_text(), re.M)
    assert dict(rows) == {name: "" if name in NAMES else "; rule only" for name in rules()}


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    for name, rule in rules().items():
        page = RUNBOOK.format(name)
        assert (rule["annotations"]["runbook_url"], rule["labels"]["source"]) == (page, "rule")
        text = (ROOT / page).read_text()
        assert text.startswith(f"# {name}\n")
        assert {"## Meaning", "## Check", "## Change"} <= set(text.splitlines()), name
    assert {path.stem for path in (ROOT / RUNBOOK).parent.glob("*.md")} == set(rules())


def test_every_metric_that_is_asked_for_exists(tmp_path: Path) -> None:
    exported = exported_names(tmp_path)
    missing = {
        where: sorted(unknown)
        for where, text in expressions().items()
        if (unknown := set(re.findall(r"\boutrace_[a-z0-9_]+", text)) - exported)
    }
    assert missing == {}


def test_the_dashboard_can_be_imported() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert board["schemaVersion"] >= 39
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "node"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["targets"]
            assert panel["description"]
            assert all('instance=~"$node"' in target["expr"] for target in panel["targets"]), panel["title"]


def test_every_expression_of_the_dashboard_is_promql(tmp_path: Path) -> None:
    """As recording rules, with Grafana's variables filled in."""
    made = []
    for n, (where, text) in enumerate(expressions().items()):
        if not where.startswith("variable"):
            made.append({"record": f"r{n}", "expr": text.replace("$__rate_interval", "1m").replace("$node", "n")})
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": made}]}))
    accepted("promtool", "check", "rules", path)


_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "info": ("_info",)}


def exported_names(state_dir: Path) -> set[str]:
    """The names of samples, as scraped; also of families without a sample here."""
    config = RunConfig(state_dir=str(state_dir), alertmanagers=("http://127.0.0.1:9",))
    parts = Parts(config, cgroupfs.detect(), meminfo.mem_total(), thresholds=config.thresholds())
    node, figures, holds, log = parts.node, parts.figures, parts.holds, parts.log
    races = parts.races()
    cluster = parts.cluster(ClusterConfig(Server("127.0.0.1", 9, https=False)))  # not asked
    own = ProcessWatch(node, figures, log, ignored, ignored)
    http = SimpleNamespace(refused=0, cut=0)
    metrics = Metrics(parts.health, holds, log, own, http, lambda: (races, cluster))
    try:
        families = list(metrics.collect())
        return {family.name + suffix for family in families for suffix in _SUFFIXES[family.type]}
    finally:
        cluster.close()
        races.close(1.0, 1.0)

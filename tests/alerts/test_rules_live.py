"""The other way: a counter on a /metrics page, a real Prometheus with our rule file, a real Alertmanager."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from monitor.side.alerts.rules import OOM_KILL, Alert
from monitor.side.export.http import Response, Server, Shared
from tests.alerts.services import DEPLOY, Alertmanager, answers, binary, fetch, process, sender
from tests.live import until
from tests.log_lines import ignored
from tests.ports import reserved

INTERVAL_S = 1

_CONFIG = """
global: {{scrape_interval: {interval}s, evaluation_interval: {interval}s}}
rule_files: ['{rules}']
alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{alertmanager}']}}]}}]}}
scrape_configs:
  - job_name: outrace
    static_configs: [{{targets: ['127.0.0.1:{target}'], labels: {{node: node1}}}}]
"""

_INHIBIT = """
route: {receiver: nowhere, group_by: [alertname], group_wait: 0s, group_interval: 1s}
receivers: [{name: nowhere}]
inhibit_rules:
  - source_matchers: ['source="push"']
    target_matchers: ['source="rule"']
    equal: [alertname, node]
"""


@contextmanager
def page(registry: CollectorRegistry) -> Iterator[int]:
    """The metrics of a registry at /metrics, by the HTTP server outrace has; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        text = "text/plain; version=0.0.4; charset=utf-8"
        metrics = Shared({"/metrics": lambda _: Response(200, text, generate_latest(registry))}, ignored)
        with closing(Server(listener, {"/metrics": metrics}, ignored)) as server:
            server.start()
            yield listener.getsockname()[1]


@contextmanager
def prometheus(directory: Path, alertmanager: Alertmanager, target: int) -> Iterator[str]:
    """A real one, scraping and evaluating every second; yields its URL."""
    port = reserved(alertmanager)
    config = directory / "prometheus.yml"
    rules = DEPLOY / "prometheus" / "outrace.rules.yml"
    config.write_text(_CONFIG.format(interval=INTERVAL_S, rules=rules, alertmanager=alertmanager.port, target=target))
    command = (
        binary("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory}/prometheus",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with process(*command, log=directory / "prometheus.log"):
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/-/ready"), "Prometheus is ready")
        yield url


def test_from_the_counter_to_alertmanager(tmp_path: Path) -> None:
    example = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())
    assert yaml.safe_load(_INHIBIT)["inhibit_rules"][0] in example["inhibit_rules"]
    registry = CollectorRegistry()
    races = Counter("outrace_race", "", ["verdict"], registry=registry)
    met = Gauge("outrace_threshold_met", "", ["signal", "kind"], registry=registry)
    ready = Gauge("outrace_ready", "", registry=registry)
    ready.set(1)
    for verdict in ("oom_during_grace", "own_limit", "relieved"):
        races.labels(verdict)  # born at 0
    met.labels("memory.available", "hard").set(0)
    alertmanager = Alertmanager(tmp_path, _INHIBIT)
    with page(registry) as target, alertmanager.running(), prometheus(tmp_path, alertmanager, target) as url:
        query = f"{url}/api/v1/query?query=count_over_time(outrace_race_total[1m])"
        until(lambda: any(int(r["value"][1]) >= 2 for r in fetch(query)["data"]["result"]), "scraped twice", 60)
        races.labels("oom_during_grace").inc()
        races.labels("relieved").inc()
        met.labels("memory.available", "hard").set(1)
        until(lambda: alertmanager.alerts("OutraceOOMKill"), "the OOM kill arrives")
        until(lambda: alertmanager.alerts("OutracePressure"), "the pressure arrives")
        (kill,) = alertmanager.alerts("OutraceOOMKill")
        assert (kill["labels"]["verdict"], kill["labels"]["source"]) == ("oom_during_grace", "rule")
        assert kill["annotations"]["runbook_url"] == "docs/runbooks/OutraceOOMKill.md"
        assert kill["status"]["state"] == "active"
        assert {alert["labels"]["alertname"] for alert in alertmanager.alerts()} == {
            "OutraceOOMKill",
            "OutracePressure",
        }
        # The same by push as well: with the inhibition of the example configuration people hear of it once.
        with sender(alertmanager.url) as sending:
            sending.fire(Alert(OOM_KILL, {"node": "node1", "pod": "hog"}, {}, time.time()))
            until(lambda: alertmanager.alerts(OOM_KILL, source="push"), "pushed")
            until(
                lambda: alertmanager.alerts(OOM_KILL, source="rule")[0]["status"]["state"] == "suppressed",
                "the rule's is inhibited",
            )
        met.labels("memory.available", "hard").set(0)
        until(lambda: not alertmanager.alerts("OutracePressure", source="rule"), "resolved after clear")
        assert alertmanager.alerts("OutraceOOMKill")  # an event stays for five minutes

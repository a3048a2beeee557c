"""The capabilities that the manifests name: which mode has which, and why."""

from __future__ import annotations

import re
from typing import Any

from tests.deploy.test_kubernetes import BASE, CHART, base, chart, daemon, enforce, hold


def capabilities(objects: list[dict[str, Any]]) -> set[str]:
    return set(daemon(objects)[1]["securityContext"]["capabilities"]["add"])


def test_what_signals_and_changes_pods_is_there_where_a_mode_does() -> None:
    acts = {"KILL", "SYS_RESOURCE", "DAC_OVERRIDE"}
    observes = capabilities(base())
    assert not observes & acts
    assert capabilities(chart()) == observes
    for made in (enforce(), hold(), chart("--set", "mode=enforce"), chart("--set", "mode=hold")):
        assert capabilities(made) == observes | acts


def test_every_capability_has_its_reason() -> None:
    for path in (BASE / "daemonset.yaml", CHART / "templates/daemonset.yaml"):
        added = path.read_text().partition("add:\n")[2].partition("volumeMounts")[0].splitlines()[:-1]
        added = [line for line in added if "{{" not in line]
        assert len(added) == len(capabilities(base() if path.is_relative_to(BASE) else enforce()))
        for line in added:
            assert re.fullmatch(r" +- [A-Z_]+ # \S.{10,}", line), line

"""What Prometheus is told to ask for and Grafana to show: the service exports all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import MatchOp

from service.instruments import Instruments
from service.store.totals import Totals
from tests.deploy.manifests import DEPLOY
from workers.plan import TimelineKind

RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "grafana" / "concertina.json").read_text())
EXPRESSIONS = {
    **{f"alert {rule['alert']}": rule["expr"] for rule in RULES},
    **{f"panel {p['title']} {t['refId']}": t["expr"] for p in DASHBOARD["panels"] for t in p["targets"]},
}
# Made by Prometheus itself for each target.
OF_PROMETHEUS = {"up": [{"job": "concertina", "instance": "concertina-0"}]}


def exported() -> dict[str, list[dict[str, str]]]:
    """Names of all series that a service with some traffic exports, with their labels."""
    instruments = Instruments()
    for status in (200, 503):
        instruments.request("GET", "/api/v1/jobs", status, 0.01)
    totals = Totals(
        jobs={}, timeline=dict.fromkeys(TimelineKind, 1), num_current=0, num_desired=0, worker_s=0.0, samples=0
    )
    text = instruments.render(totals, {}).decode()
    series: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, []).append(sample.labels)
    return series | OF_PROMETHEUS


def selectors(node: object) -> Iterator[promql_parser.VectorSelector]:
    """Every choice of series within an expression."""
    match node:
        case promql_parser.VectorSelector():
            yield node
        case promql_parser.MatrixSelector():
            yield node.vector_selector
        case promql_parser.BinaryExpr():
            yield from selectors(node.lhs)
            yield from selectors(node.rhs)
        case promql_parser.Call():
            for argument in node.args:
                yield from selectors(argument)
        case promql_parser.AggregateExpr() | promql_parser.ParenExpr():
            yield from selectors(node.expr)
        case promql_parser.NumberLiteral():
            return
        case _:
            raise AssertionError(f"this test does not know what is asked for by {node}")


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_every_series_that_is_asked_for_is_exported(expression: str) -> None:
    series = exported()
    chosen = list(selectors(promql_parser.parse(expression)))
    assert chosen
    for selector in chosen:
        assert selector.name in series
        for wanted in selector.matchers.matchers:
            values = {labels.get(wanted.name) for labels in series[selector.name]}
            if wanted.op == MatchOp.Equal:
                assert wanted.value in values
            else:
                assert None not in values


def test_every_alert_says_how_bad_it_is_and_what_it_means() -> None:
    for rule in RULES:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"].endswith(".")


def test_every_panel_asks_the_source_that_was_chosen_and_none_lies_on_another() -> None:
    assert [v["name"] for v in DASHBOARD["templating"]["list"]] == ["source"]
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert {panel["datasource"]["uid"], *(t["datasource"]["uid"] for t in panel["targets"])} == {"${source}"}
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells

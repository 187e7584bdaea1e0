"""Alerts and dashboard ask for metrics, labels and label values that the code exports."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from control_plane.objects.installation import Installation, completed
from control_plane.objects.pods import pod_template
from tandem.core.errors import KINDS
from tandem.core.metrics import METRICS
from tandem.spec.reading import read_service
from tests.helm.charts import CHART, EVERYTHING, NAMESPACE, of_kind, render, selects, workloads

RULES: Final = [
    rule
    for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD: Final = json.loads((CHART / "files" / "dashboard.json").read_text("utf-8"))
OF_THE_TARGET: Final = {"namespace", "pod", "job", "instance", "le"}
_NAME: Final = re.compile(r"\btandem_[a-z0-9_]+")
_SELECTED: Final = re.compile(r"(tandem_[a-z0-9_]+)\{([^}]*)\}")
_BY: Final = re.compile(r"by \(([^)]*)\)")
_CODES: Final = re.compile(r'(?:code|outcome)=~"([^"$]*)"')


def queries() -> Iterator[tuple[str, str]]:
    """(where it is, PromQL) of everything."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]


def exported(name: str) -> str:
    """The metric that a series belongs to."""
    found = re.sub(r"_(bucket|sum|count)$", "", name)
    assert found in METRICS, f"nothing exports {name}"
    if found != name:
        assert METRICS[found].kind == "histogram"
    return found


@pytest.mark.parametrize(("where", "query"), list(queries()), ids=[where for where, _ in queries()])
def test_queries_ask_for_what_is_exported(where: str, query: str) -> None:
    names = {exported(name) for name in _NAME.findall(query)}
    assert names, where
    for series, matchers in _SELECTED.findall(query):
        for label in re.findall(r"(\w+)\s*(?:=|!)", matchers):
            assert label in {*METRICS[exported(series)].labels, *OF_THE_TARGET}, (series, label)
    known = {label for name in names for label in METRICS[name].labels} | OF_THE_TARGET
    for labels in _BY.findall(query):
        assert {label.strip() for label in labels.split(",")} <= known
    for codes in _CODES.findall(query):
        if "_operator_" not in query:
            assert set(codes.split("|")) <= KINDS.keys()
    for opening, closing in ("()", "{}", "[]"):
        assert query.count(opening) == query.count(closing)
    for name in names:
        counter = METRICS[name].kind == "counter"
        assert not counter or re.search(rf"(rate|increase)\({name}|label_values\({name}", query), name


def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["for"]
        assert set(rule["annotations"]) == {"summary", "description"}
        assert all(text.endswith(".") for text in rule["annotations"].values())
        asked = {label.strip() for labels in _BY.findall(rule["expr"]) for label in labels.split(",")}
        said = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert said <= asked, "a label that is summed away is empty"


def test_only_what_does_not_serve_pages() -> None:
    found = {rule["alert"]: rule for rule in RULES}
    down, unready = found["TandemModelServiceIsNotAvailable"], found["TandemModelServiceIsNotReady"]
    assert (down["labels"]["severity"], down["for"]) == ("critical", "15m")
    assert 'condition="Available"}) == 0' in down["expr"]
    # Rollouts and more replicas.
    assert (unready["labels"]["severity"], unready["for"]) == ("warning", "1h")


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    legends = (target["legendFormat"] for panel in panels for target in panel.get("targets", ()))
    assert all(legends)


def test_nothing_of_it_is_made_unless_asked_for() -> None:
    kinds = {obj["kind"] for obj in render()}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


def test_monitors_find_services_and_pods() -> None:
    objects = render(EVERYTHING)
    services = of_kind(objects, "Service")
    for monitor in of_kind(objects, "ServiceMonitor"):
        (found,) = (one for one in services if selects(monitor["spec"]["selector"], one["metadata"]["labels"]))
        ports = {port["name"] for port in found["spec"]["ports"]}
        assert {each["port"] for each in monitor["spec"]["endpoints"]} <= ports
    (pods,) = of_kind(objects, "PodMonitor")
    assert pods["spec"]["namespaceSelector"] == {"matchNames": ["llm", "search"]}
    stores = [one for one in workloads(objects) if one["kind"] == "DaemonSet"]
    assert selects(pods["spec"]["selector"], stores[0]["spec"]["template"]["metadata"]["labels"])
    service = completed(read_service(CHART.parents[1] / "examples" / "cpu-demo.yaml"), Installation())
    worker = pod_template(service, service.spec.pools[0], "r", Installation())
    assert selects(pods["spec"]["selector"], worker["metadata"]["labels"])
    for spec in (stores[0]["spec"]["template"]["spec"], worker["spec"]):
        named = {port["name"] for port in spec["containers"][0]["ports"]}
        assert {each["port"] for each in pods["spec"]["podMetricsEndpoints"]} <= named


def test_the_objects_hold_the_files() -> None:
    objects = render(EVERYTHING)
    (rule,) = of_kind(objects, "PrometheusRule")
    (board,) = of_kind(objects, "ConfigMap", "tandem-dashboard")
    assert [each for group in rule["spec"]["groups"] for each in group["rules"]] == RULES
    shown: dict[str, Any] = json.loads(board["data"]["tandem.json"])
    assert shown == DASHBOARD
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert board["metadata"]["namespace"] == NAMESPACE

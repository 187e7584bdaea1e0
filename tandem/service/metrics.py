"""The closed list of metrics, kept and rendered by prometheus_client in a registry of our own."""

from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tandem.core.metrics import METRICS, Metric, check_metric

CONTENT_TYPE: Final[str] = CONTENT_TYPE_LATEST


class PrometheusMeter:
    """`tandem.core.metrics.Meter` for a process. All metrics exist from the start, so a scrape never lacks one.

    Looking a labelled child up costs prometheus_client several microseconds; children are kept here instead.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters = {name: _counter(metric, self._registry) for name, metric in _of_kind("counter")}
        self._gauges = {name: _gauge(metric, self._registry) for name, metric in _of_kind("gauge")}
        self._histograms = {name: _histogram(metric, self._registry) for name, metric in _of_kind("histogram")}
        self._counter_children: dict[tuple[str, tuple[str, ...]], Counter] = {}
        self._gauge_children: dict[tuple[str, tuple[str, ...]], Gauge] = {}
        self._histogram_children: dict[tuple[str, tuple[str, ...]], Histogram] = {}

    def add(self, name: str, value: float = 1.0, *labels: str) -> None:
        child = self._counter_children.get((name, labels))
        if child is None:
            check_metric(name, "counter", labels)
            child = self._counters[name].labels(*labels) if labels else self._counters[name]
            self._counter_children[name, labels] = child
        child.inc(value)

    def set(self, name: str, value: float, *labels: str) -> None:
        child = self._gauge_children.get((name, labels))
        if child is None:
            check_metric(name, "gauge", labels)
            child = self._gauges[name].labels(*labels) if labels else self._gauges[name]
            self._gauge_children[name, labels] = child
        child.set(value)

    def observe(self, name: str, value: float, *labels: str) -> None:
        child = self._histogram_children.get((name, labels))
        if child is None:
            check_metric(name, "histogram", labels)
            child = self._histograms[name].labels(*labels) if labels else self._histograms[name]
            self._histogram_children[name, labels] = child
        child.observe(value)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format (`CONTENT_TYPE`)."""
        return bytes(generate_latest(self._registry))


def _of_kind(kind: str) -> list[tuple[str, Metric]]:
    return [(name, metric) for name, metric in METRICS.items() if metric.kind == kind]


def _counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)


def _histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)

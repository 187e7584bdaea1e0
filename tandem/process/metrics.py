"""The closed list of metrics: figures kept in plain dictionaries, rendered by prometheus_client when asked for.

Reporting happens on every request and, in part, on every token; a scrape every few seconds. So all work that can wait
for the scrape does: a report is one dictionary update, several times cheaper than prometheus_client's own objects.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tandem.core.errors import TandemError
from tandem.core.metrics import METRICS, Metric, check_metric
from tandem.process.probe_pages import serve_pages

_Key = tuple[str, tuple[str, ...]]


class _Histogram:
    """Observations by bucket; `counts` has one more place than `bounds`, for what is above all of them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def cumulated(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), ending with all of them."""
        bounds = [*map(floatToGoString, self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class PrometheusMeter:
    """`tandem.core.metrics.Meter` for a process. Metrics without labels exist from the start."""

    def __init__(self) -> None:
        self._values: dict[_Key, float] = {}
        self._histograms: dict[_Key, _Histogram] = {}
        for metric in METRICS.values():
            if not metric.labels:
                self._begin(metric, ())
        self._asked: dict[str, Callable[[], Mapping[tuple[str, ...], float]]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(_Families(self._values, self._histograms, self._asked))

    def add(self, name: str, value: float = 1.0, *labels: str) -> None:
        key = name, labels
        known = self._values.get(key)
        if known is None or METRICS[name].kind != "counter":
            check_metric(name, "counter", labels)
        assert value >= 0, f"{name} only counts up, not by {value}"
        self._values[key] = (known or 0.0) + value

    def set(self, name: str, value: float, *labels: str) -> None:
        key = name, labels
        if key not in self._values or METRICS[name].kind != "gauge":
            check_metric(name, "gauge", labels)
        self._values[key] = value

    def replace(self, name: str, values: Mapping[tuple[str, ...], float]) -> None:
        """A gauge has these values, by its labels, and no others."""
        for key in [key for key in self._values if key[0] == name and key[1] not in values]:
            del self._values[key]
        for labels, value in values.items():
            self.set(name, value, *labels)

    def ask(self, name: str, values: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """A gauge has what `values` gives, by its labels, whenever metrics are asked for, perhaps from another
        thread."""
        assert METRICS[name].kind == "gauge"
        self._asked[name] = values

    def observe(self, name: str, value: float, *labels: str) -> None:
        histogram = self._histograms.get((name, labels))
        if histogram is None:
            check_metric(name, "histogram", labels)
            histogram = self._histograms[name, labels] = _Histogram(METRICS[name].buckets)
        histogram.counts[bisect_left(histogram.bounds, value)] += 1
        histogram.total += value

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return bytes(generate_latest(self._registry))

    def serve(self, bind: str, problem: Callable[[], str | None] = lambda: None) -> str:
        """Answer scrapes and probes on `host:port` from a daemon thread; gives the address. `problem` is why the
        service takes no work now. Raises `bad_setting`."""
        host, _, port = bind.rpartition(":")
        try:
            bound = serve_pages(host.strip("[]"), int(port), make_wsgi_app(self._registry), problem)
        except (OSError, ValueError, OverflowError) as error:
            told = f"metrics_bind = {bind!r}: cannot serve metrics there: {error}"
            raise TandemError("bad_setting", told, param="metrics_bind") from error
        return f"{host}:{bound}"

    def _begin(self, metric: Metric, labels: tuple[str, ...]) -> None:
        if metric.kind == "histogram":
            self._histograms[metric.name, labels] = _Histogram(metric.buckets)
        else:
            self._values[metric.name, labels] = 0.0


class _Families(Collector):
    """The figures as prometheus_client wants them, made when a scrape asks, perhaps from another thread."""

    def __init__(
        self,
        values: dict[_Key, float],
        histograms: dict[_Key, _Histogram],
        asked: Mapping[str, Callable[[], Mapping[tuple[str, ...], float]]],
    ) -> None:
        self._values = values
        self._histograms = histograms
        self._asked = asked

    def collect(self) -> Iterator[Family]:
        for metric in METRICS.values():
            if metric.kind == "histogram":
                yield self._histogram(metric)
            else:
                yield self._single(metric)

    def _single(self, metric: Metric) -> Family:
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        for (name, labels), value in list(self._values.items()):
            if name == metric.name:
                family.add_metric(labels, value)
        if (values := self._asked.get(metric.name)) is not None:
            for labels, value in values().items():
                family.add_metric(labels, value)
        return family

    def _histogram(self, metric: Metric) -> Family:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for (name, labels), histogram in list(self._histograms.items()):
            if name == metric.name:
                family.add_metric(labels, buckets=histogram.cumulated(), sum_value=histogram.total)
        return family

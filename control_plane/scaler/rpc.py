"""KEDA's messages, read and written. Nothing else imports them."""

from typing import Final

from google.protobuf.message import DecodeError

from control_plane.scaler.metric_cache import PoolName
from protos import externalscaler_pb2 as wire
from tandem.core.errors import TandemError

SERVICE: Final = "externalscaler.ExternalScaler"
METRIC: Final = "tandem-workers"
"""Name of the metric: the load of a pool, in workers. Its target is always one: KEDA reads targets only when it makes
the autoscaler, so a target in tokens would not follow the measured speed."""
TARGET: Final = 1.0


def read_pool(raw: bytes) -> PoolName:
    """The pool of a `ScaledObjectRef`. Raises `invalid_request`."""
    reference = wire.ScaledObjectRef()
    _parse(reference, raw)
    return _pool(reference)


def read_metrics(raw: bytes) -> tuple[PoolName, str]:
    """Pool and metric of a `GetMetricsRequest`. Raises `invalid_request`."""
    request = wire.GetMetricsRequest()
    _parse(request, raw)
    return _pool(request.scaledObjectRef), request.metricName


def write_active(active: bool) -> bytes:
    return wire.IsActiveResponse(result=active).SerializeToString()


def write_spec() -> bytes:
    spec = wire.MetricSpec(metricName=METRIC, targetSize=round(TARGET), targetSizeFloat=TARGET)
    return wire.GetMetricSpecResponse(metricSpecs=[spec]).SerializeToString()


def write_metric(value: float, replicas: int) -> bytes:
    """The integer is for versions that know no double: rounded up, as the autoscaler would."""
    metric = wire.MetricValue(metricName=METRIC, metricValue=replicas, metricValueFloat=value)
    return wire.GetMetricsResponse(metricValues=[metric]).SerializeToString()


def _pool(reference: wire.ScaledObjectRef) -> PoolName:
    if not reference.namespace or not (reference.name or reference.scalerMetadata):
        raise TandemError("invalid_request", "a ScaledObject has a name and a namespace", param="scaledObjectRef")
    metadata = reference.scalerMetadata
    return PoolName(reference.namespace, metadata.get("service", ""), metadata.get("pool", ""), reference.name)


def _parse(message: "wire.ScaledObjectRef | wire.GetMetricsRequest", raw: bytes) -> None:
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise TandemError("invalid_request", f"this is no {type(message).__name__}: {error}") from None

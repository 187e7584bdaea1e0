"""The external scaler that KEDA asks: decisions on a board, answered over gRPC by every replica."""

from control_plane.scaler.loop import ScalingLoop
from control_plane.scaler.metric_cache import MetricCache
from control_plane.scaler.server import ScalerServer, ScalerSettings, serve

__all__ = ["MetricCache", "ScalerServer", "ScalerSettings", "ScalingLoop", "serve"]

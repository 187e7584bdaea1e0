"""The external scaler that KEDA asks: decisions on a board, answered over gRPC by every replica."""

from control_plane.scaler.board import Board
from control_plane.scaler.loop import ScalingLoop
from control_plane.scaler.server import ScalerServer, ScalerSettings, serve

__all__ = ["Board", "ScalerServer", "ScalerSettings", "ScalingLoop", "serve"]

"""Decides how many workers each pool of a service should have. Pure decisions with their reasons."""

from control_plane.autoscale.decide import Scaling, decide
from control_plane.autoscale.history import History
from control_plane.autoscale.model import DecodeFit, PoolLoad, PoolScaling, PoolSpeed, ServiceLoad

__all__ = ["DecodeFit", "History", "PoolLoad", "PoolScaling", "PoolSpeed", "Scaling", "ServiceLoad", "decide"]

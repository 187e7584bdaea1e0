"""Decide whether a worker or store publishes which blocks it has, and where besides its links."""

from kv_transfer.index.redis_settings import RedisSettings
from tandem.core.clock import Clock
from tandem.core.metrics import Meter
from tandem.worker.deps import OpenPublisher


def publishing(settings: RedisSettings, clock: Clock, meter: Meter) -> OpenPublisher | None:
    """The function that makes the publisher; None when the settings name no Redis."""
    if not settings.redis_url:
        return None
    # Imported on use: without Redis its client is not even loaded.
    from kv_transfer.index.redis_client import redis_client
    from kv_transfer.index.redis_publisher import RedisPublisher

    connect = redis_client(settings)
    return lambda hello, names: RedisPublisher(settings, hello, names, clock, meter, connect)

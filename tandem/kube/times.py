"""Timestamps as Kubernetes writes them."""

from datetime import UTC, datetime


def timestamp(wall: float) -> str:
    """Seconds since the epoch as RFC 3339 in UTC."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(wall: float) -> str:
    """Seconds since the epoch as RFC 3339 in UTC with microseconds, as Leases and Events want them."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

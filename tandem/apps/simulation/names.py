"""Names of the nodes that every world may have beside its workers and stores."""

from typing import Final

ROUTER: Final = "router"
"""The first router."""
REDIS: Final = "redis"

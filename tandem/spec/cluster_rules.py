"""Rules of a cluster alone: on one machine and on Ray, files may have what these refuse."""

from typing import Final

from tandem.spec.rules import Rule
from tandem.spec.service import Spec

_MARKS: Final = ("@", "password=")
"""What a URL with a user or a password has in it."""


def has_credentials(url: str) -> bool:
    """Whether a URL names a user or a password; of several, separated by commas, whether one does."""
    return any(mark in url for mark in _MARKS)


CLUSTER_RULES: Final = (
    Rule(
        Spec,
        f"!has(self.redis) || !({' || '.join(f'self.redis.contains({mark!r})' for mark in _MARKS)})",
        "redis has a user or a password, which everybody who may read the service would see: put the URL into a "
        "Secret of this namespace, under the key url, and name that in redisSecretRef instead",
        lambda spec: spec.redis is None or not has_credentials(spec.redis),
        "redis",
    ),
)

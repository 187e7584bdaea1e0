"""How many replicas each pool's deployment has: Serve's controller follows a table that the hub writes.

Serve pickles this module into its controller by value, so it imports the standard library alone, and Ray on use.
"""

import json
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

WANTED_KEY: Final = "tandem:wanted"
"""The key of the table in Ray's internal key-value store."""
READ_EVERY_S: Final = 0.25
STALE_S: Final = 60.0
"""A table that has not been written for so many seconds changes nothing any more."""

Counts = Mapping[str, Mapping[str, int]]
Read = Callable[[], bytes | None]


def encode_table(counts: Counts, turn: int) -> bytes:
    """The table in writing: replicas wanted by application and deployment. `turn` differs from one write to the next,
    so that readers see that the writer is alive."""
    return json.dumps({"turn": turn, "counts": counts}).encode()


def decode_table(written: bytes) -> dict[str, dict[str, int]]:
    """The counts of a table. Raises `ValueError` for anything else."""
    table = json.loads(written)
    if not isinstance(table, dict) or not isinstance(table.get("counts"), dict):
        raise ValueError("the table of wanted replicas has no counts")
    return {app: {name: int(count) for name, count in of.items()} for app, of in table["counts"].items()}


class WantedTable:
    """The table as last read. `look` reads it again; `count` gives what is wanted while the table is not stale.

    Its age is how long ago this reader has seen it change, on this reader's own clock.
    """

    def __init__(self, read: Read, now: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._now = now
        self._written: bytes | None = None
        self._counts: dict[str, dict[str, int]] = {}
        self._changed_at = now()
        self.over = threading.Event()
        """Set when nobody asks any more."""

    def look(self) -> None:
        """Read the table. One that cannot be read, or is no table, leaves the last one in force."""
        try:
            written = self._read()
            if written is not None and written != self._written:
                self._counts, self._written, self._changed_at = decode_table(written), written, self._now()
        except Exception:  # noqa: BLE001 whatever the store raises while it is away: the last table stays
            return

    def count(self, app: str, deployment: str) -> int | None:
        """Replicas wanted; None when the table does not name the deployment, or is stale."""
        if self._written is None or self._now() - self._changed_at > STALE_S:
            return None
        return self._counts.get(app, {}).get(deployment)

    def follow(self) -> None:
        """Read on, until `over` is set."""
        while not self.over.wait(READ_EVERY_S):
            self.look()


class WantedReplicas:
    """A policy of `ray.serve.config.AutoscalingPolicy`: the deployment has what the hub's table says, in whole gangs
    of `gang` replicas. Serve makes one for each deployment, and calls it in its control loop, so it never blocks."""

    def __init__(self, app: str, deployment: str, gang: int = 1, read: Read | None = None) -> None:
        self._app = app
        self._deployment = deployment
        self._gang = gang
        self._table = WantedTable(read or _from_ray)
        threading.Thread(target=self._table.follow, daemon=True, name=f"wanted replicas of {app}").start()
        weakref.finalize(self, self._table.over.set)

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        """Replicas that the deployment is to have, and no state. What it has is kept where the table is silent."""
        wanted = self._table.count(self._app, self._deployment)
        return (int(ctx.target_num_replicas) if wanted is None else wanted * self._gang), {}


def _from_ray() -> bytes | None:
    # Imported on use: tests of this module need no Ray.
    from ray.experimental.internal_kv import _internal_kv_get

    found: bytes | None = _internal_kv_get(WANTED_KEY)
    return found

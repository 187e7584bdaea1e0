"""Every wait in the system, in one place. All are settings; none is infinite."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Deadlines:
    """Bounds in seconds. A request's own `timeout` can only shorten them."""

    heartbeat_every_s: float = 0.5
    heartbeat_lost_s: float = 2.0
    queue_s: float = 10.0
    """Seconds that a request may wait for a place: on a router, and on a worker since the last moment at which a
    prompt ahead of it made progress."""
    kv_wait_s: float = 30.0
    """The wait for KV blocks that no transfer is bringing; a running transfer has bounds of its own."""
    prefill_progress_s: float = 5.0
    """Seconds that the prefill of a hand-off may make no progress before its router gives it up, unless ten of its
    worker's longest steps take longer."""
    transfer_progress_s: float = 2.0
    inter_token_s: float = 10.0
    total_s: float = 600.0
    unknown_name_s: float = 2.0
    lease_s: float = 30.0
    drain_s: float = 30.0
    connect_s: float = 5.0
    resumable_lease_s: float = 15.0
    """Seconds for which a resumable request continues, and its answer is kept, for a client to come back."""
    router_restart_s: float = 60.0
    """Within which a router that was lost is there again: twice the slowest start that was measured, on a machine
    with far more to do than it has cores for. Workers keep what the router had for so much longer."""

    @property
    def standstill_max_s(self) -> float:
        """The most that a prompt may stand still because its worker's steps take long."""
        return self.queue_s + self.kv_wait_s

    @property
    def orphan_lease_s(self) -> float:
        """Seconds for which a worker keeps the resumable attempts of a lost router: no client can come back to them
        before a router is there again."""
        return self.router_restart_s + self.resumable_lease_s

    @property
    def unjudged_s(self) -> float:
        """Seconds after which the workers that bring and hold the blocks of a stalled prompt end its hand-off
        themselves. The decision belongs to its router, which makes it earlier."""
        return max(self.prefill_progress_s, self.standstill_max_s) + self.heartbeat_lost_s

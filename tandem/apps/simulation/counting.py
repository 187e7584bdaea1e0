"""Counters of one simulated platform, for the report: the router and all workers share it."""

from tandem.core.metrics import NullMeter


class CountingMeter(NullMeter):
    """Keeps the sums of counters by name and labels; gauges and histograms are only checked."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, ...], float] = {}

    def add(self, name: str, value: float = 1.0, *labels: str) -> None:
        super().add(name, value, *labels)
        key = (name, *labels)
        self.sums[key] = self.sums.get(key, 0.0) + value

    def sum(self, name: str, *labels: str) -> int:
        return int(self.sums.get((name, *labels), 0.0))

    def onboarded_blocks(self) -> dict[str, int]:
        """Blocks fetched instead of being computed, by where they were found."""
        found = "tandem_kv_blocks_brought_total"
        return {key[1]: int(value) for key, value in sorted(self.sums.items()) if key[0] == found}

    def refused_blocks(self) -> int:
        """Pulled blocks that were not used, whatever the reason."""
        return int(sum(value for key, value in self.sums.items() if key[0] == "tandem_kv_blocks_refused_total"))

    def looked_up(self) -> dict[str, int]:
        """Prompts looked up in Redis, by outcome."""
        asked = "tandem_redis_look_ups_total"
        return {key[1]: int(value) for key, value in sorted(self.sums.items()) if key[0] == asked}

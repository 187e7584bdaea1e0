"""The contents of one Redis node, as far as the index uses it: keys with expiry. Pure; times in milliseconds."""

from dataclasses import dataclass, field


@dataclass
class Bucket:
    """A hash; `expires` in ms, None for never."""

    fields: dict[bytes, bytes] = field(default_factory=dict)
    expires: int | None = None


@dataclass
class RedisData:
    """Everything in one node. Whatever has expired is gone when it is looked for."""

    numbers: dict[bytes, int] = field(default_factory=dict)
    records: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """Value and expiry by key."""
    scores: dict[bytes, dict[bytes, int]] = field(default_factory=dict)
    buckets: dict[bytes, Bucket] = field(default_factory=dict)
    displaced: dict[bytes, set[bytes]] = field(default_factory=dict)
    """The names in which a living holder gave way to others, by the holder's record. Redis has no such key: the
    simulation uses it to judge what Redis should say."""

    def copy(self) -> "RedisData":
        """An independent copy of the data."""
        return RedisData(
            dict(self.numbers),
            dict(self.records),
            {key: dict(scores) for key, scores in self.scores.items()},
            {key: Bucket(dict(bucket.fields), bucket.expires) for key, bucket in self.buckets.items()},
            {record: set(names) for record, names in self.displaced.items()},
        )

    def record(self, key: bytes, now: int) -> bytes | None:
        value, expires = self.records.get(key, (b"", 0))
        return value if expires > now else None

    def bucket(self, key: bytes, now: int) -> Bucket | None:
        found = self.buckets.get(key)
        if found is not None and found.expires is not None and found.expires <= now:
            del self.buckets[key]
            return None
        return found

    def put(self, key: bytes, name: bytes, value: bytes, now: int) -> None:
        """Set a field of a bucket."""
        found = self.bucket(key, now)
        if found is None:
            found = self.buckets[key] = Bucket()
        found.fields[name] = value

    def cut(self, key: bytes, name: bytes) -> None:
        """Drop a field; a bucket without any is gone."""
        found = self.buckets[key]
        del found.fields[name]
        if not found.fields:
            del self.buckets[key]

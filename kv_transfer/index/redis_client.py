"""`RedisConnection` over the Redis client library: the only module that imports it."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ClusterDownError, NoScriptError, ReadOnlyError, RedisError, ResponseError

from kv_transfer.index.redis_connection import Argument, CommandRefused, Connect, RedisFailed, ScriptUnknown
from kv_transfer.index.redis_settings import RedisSettings


def redis_client(settings: RedisSettings) -> Connect:
    """The function that opens a node with these settings."""
    return partial(RedisClient, settings)


class RedisClient:
    """A pool of connections to the node at `url`."""

    def __init__(self, settings: RedisSettings, url: str) -> None:
        self._client: Redis = Redis.from_url(
            url,
            max_connections=settings.connections_max,
            socket_timeout=None,
            socket_connect_timeout=settings.connect_s,
            retry=Retry(NoBackoff(), 0),
        )

    async def ask(self, *command: Argument) -> object:
        with _typed():
            answer: object = await self._client.execute_command(*command)  # type: ignore[no-untyped-call]
            return answer

    async def run_id(self) -> str:
        with _typed():
            return str((await self._client.info("server"))["run_id"])

    async def close(self) -> None:
        await self._client.aclose()


@contextmanager
def _typed() -> Generator[None, None, None]:
    """The library's errors as the seam's."""
    try:
        yield
    except NoScriptError as error:
        raise ScriptUnknown(str(error)) from error
    except RedisError as error:
        # A replica, and a node without its primary, refuse whatever is written.
        refused = isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError | ClusterDownError)
        failed = CommandRefused if refused else RedisFailed
        raise failed(f"{type(error).__name__}: {error}") from error

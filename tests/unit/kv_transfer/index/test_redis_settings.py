"""Settings of the Redis index: addresses that are taken or refused, and how they are shown."""

import pytest

from kv_transfer.index.redis_settings import RedisSettings, shown
from tandem.core.errors import TandemError


@pytest.mark.parametrize(
    "url",
    [
        "redis://cache",
        "redis://cache:6380/2",
        "rediss://user:secret@cache:1",
        "redis://:secret@/2",
        "redis://user:secret@",
        "redis:///2",
        "unix:///run/redis.sock",
        "unix://user:secret@/run/redis.sock",
        "redis://user:a%2Fb@cache?password=c%40d",
    ],
)
def test_a_whole_address_is_taken(url: str) -> None:
    assert RedisSettings(url).urls == (url,)


@pytest.mark.parametrize(
    "url",
    [
        "http://cache",
        "cache:6379",
        "redis://cache:0",
        "redis://cache:65536",
        "redis://cache:port",
        "redis://:6379",
        "redis://user:sec/ret@cache",
        "redis://user:sec?ret@cache",
        "redis://user:sec#ret@cache",
        "redis://[cache",
    ],
)
def test_an_address_that_leads_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(TandemError, match="redis_url = ") as caught:
        RedisSettings(f"redis://good, {url}")
    assert (caught.value.code, caught.value.param) == ("bad_setting", "redis_url")


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("redis://user:secret@cache", "redis://cache:6379"),
        ("rediss://cache:6380/2?password=secret", "rediss://cache:6380/2"),
        ("redis://:secret@/2", "redis:///2"),
        ("unix://user:secret@/run/redis.sock", "unix:///run/redis.sock"),
        ("redis://user:sec/ret@cache", "redis://***"),
        ("redis://cache:0", "redis://***"),
        ("user:sec@ret", "***"),
    ],
)
def test_an_address_is_shown_so_that_an_operator_knows_it_and_nobody_learns_the_password(url: str, seen: str) -> None:
    assert shown(url) == seen


def test_nodes_are_separated_by_commas() -> None:
    assert RedisSettings(" redis://one ,,redis://two:1,").urls == ("redis://one", "redis://two:1")
    assert RedisSettings("").urls == ()


def test_keys_begin_with_the_service_that_is_asked_for() -> None:
    settings = RedisSettings(service="llm.llama")
    assert settings.key_prefix == settings.prefix_of("") == b"llm.llama:"
    assert settings.prefix_of("llm.qwen") == b"llm.qwen:"

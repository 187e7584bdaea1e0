"""Tenants on real processes: equal prompts share nothing, pinned prefixes are their owner's, quotas are kept."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.apps.cli.router_client import send_request
from tandem.apps.client.http import parse_target
from tandem.core.errors import TandemError
from tandem.core.tiers import TIERS
from tandem.link.proof import LinkKeys
from tandem.link.tcp_dialer import TcpDialer
from tandem.process.system import SystemEntropy
from tests.worlds.up_stage import Up, root, up

__all__ = ["root"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="relies on the parent-death signal")

TEXT = "the quick brown fox jumps over the lazy dog " * 16
REUSED = {"TANDEM_HOST__REUSE": "always", "TANDEM_CORE__PLACEMENT__TRANSFER_SETUP_MS": "-1e6"}
"""What somebody has is brought, however cheap it is to compute such short prompts: on a busy machine that varies."""
KEYS = {
    "salt_key": "0123456789abcdef",
    "keys": {"a": "alice", "b": "bob", "c": "carol", "ops": {"tenant": "ops", "operator": True}},
    "tenants": {"carol": {"kv_bytes_max": 10_000}},
}


async def call(running: Up, key: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    target = parse_target(f"http://{running.target.authority}", key)
    sent = b"" if body is None else msgspec.json.encode(body)
    status, answer = await send_request(target, method, path, sent, timeout_s=30)
    return status, msgspec.json.decode(answer)


async def complete(running: Up, key: str, **parameters: Any) -> tuple[str, dict[str, Any]]:
    """Text and details of the prompt tokens."""
    body = {"model": "demo", "prompt": TEXT + "and more", "max_tokens": 2, "temperature": 0, **parameters}
    status, answer = await call(running, key, "POST", "/v1/completions", body)
    assert status == 200, answer
    return answer["id"], answer["usage"]["prompt_tokens_details"]


async def story(running: Up, key: str, request_id: str) -> dict[str, Any]:
    """What dispatch says of a request."""
    _, found = await call(running, key, "GET", f"/v1/requests/{request_id}")
    (dispatch,) = [span for span in found["spans"] if span["name"] == "dispatch"]
    attributes: dict[str, Any] = dispatch["attributes"]
    return attributes


async def test_tenants_share_no_block_and_keep_what_is_theirs(root: Path) -> None:
    (root / "keys.json").write_bytes(msgspec.json.encode(KEYS))
    settings = {"TANDEM_API_KEYS": str(root / "keys.json"), "TANDEM_TIERS__DRAM_BYTES": str(64 << 20)}
    async with up(root, "--prefill", "1", "--decode", "1", settings=settings | REUSED) as running:
        await running.line("is served at")
        await no_sharing(running)
        await pinned(running)
        await bounded(running)
        await strangers(running)


async def strangers(running: Up) -> None:
    """Whoever has no secret finds no worker's address; with the address he gets no link, and ends nothing."""
    assert (await call(running, "a", "GET", "/v1/revisions"))[0] == 403
    _, shown = await call(running, "a", "GET", "/v1/workers")
    assert {worker["address"] for worker in shown["data"]} == {""}
    _, before = await call(running, "ops", "GET", "/v1/workers")
    assert len(before["data"]) == 2
    for worker in before["data"]:
        for keys in (None, LinkKeys([b"not the ticket key"])):
            with pytest.raises(TandemError, match="ticket key"):
                await TcpDialer("stranger", SystemEntropy(), keys=keys).dial(worker["address"], 20.0)
    await complete(running, "a")
    _, after = await call(running, "ops", "GET", "/v1/workers")
    assert [worker["epoch"] for worker in after["data"]] == [worker["epoch"] for worker in before["data"]]


async def no_sharing(running: Up) -> None:
    """The second tenant finds nothing of the first one's in any tier, and is not told of it."""
    nothing = dict.fromkeys(TIERS, 0)
    _, first = await complete(running, "a")
    assert first["cached_tokens_by_tier"] == nothing
    _, again = await complete(running, "a")
    assert again["cached_tokens_by_tier"]["hbm"] >= 700
    other_id, other = await complete(running, "b")
    assert (other["cached_tokens"], other["cached_tokens_by_tier"]) == (0, nothing)
    _, salted = await complete(running, "a", cache_salt="apart")
    assert salted["cached_tokens_by_tier"] == nothing
    told, for_operator = await story(running, "b", other_id), await story(running, "ops", other_id)
    assert told["missed"] == "never_seen"
    assert not [name for name in told if name.startswith("operator.")]
    assert "another tenant" in for_operator["operator.missed_because"]
    parted_id, parted = await complete(running, "a", prompt=TEXT + "but something else, which is long enough")
    assert parted["cached_tokens_by_tier"]["hbm"] >= 700
    missed = await story(running, "a", parted_id)
    assert (missed["missed"], missed["missed_character"]) == ("diverged", len(TEXT))
    assert missed["missed_before"].endswith("lazy dog ")
    assert missed["missed_after"].startswith("but something")


async def pinned(running: Up) -> None:
    """A pinned prefix is in its workers' tiers, serves its tenant, and is let go."""
    asked = {"model": "demo", "prompt": "A handbook of many pages. " * 30, "ttl_s": 300, "priority": 3}
    status, prefix = await call(running, "b", "POST", "/v1/cache/prefixes", asked)
    assert status == 200, prefix
    assert prefix["tokens"] == prefix["blocks"] * 16 == 768
    (holder,) = prefix["holders"]
    assert holder["blocks"] == prefix["blocks"]
    _, details = await complete(running, "b", prompt=asked["prompt"] + "What is on page 7?")
    assert details["cached_tokens"] >= 768
    path = f"/v1/cache/prefixes/{prefix['id']}"
    assert (await call(running, "a", "DELETE", path))[0] == 404
    assert (await call(running, "b", "GET", path))[1]["holders"] == prefix["holders"]
    assert (await call(running, "b", "DELETE", path))[0] == 200
    assert (await call(running, "b", "GET", "/v1/cache/prefixes"))[1]["data"] == []


async def bounded(running: Up) -> None:
    """A quota refuses with its numbers before anything is computed."""
    asked = {"model": "demo", "prompt": TEXT, "ttl_s": 300}
    status, refused = await call(running, "c", "POST", "/v1/cache/prefixes", asked)
    assert (status, refused["error"]["code"]) == (429, "over_quota")
    assert "10000 bytes" in refused["error"]["message"]
    assert (await call(running, "c", "POST", "/v1/cache/prefixes", {**asked, "prompt": TEXT[:64]}))[0] == 200

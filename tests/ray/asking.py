"""What tests of a Ray cluster ask: chat through the ingress, and waiting until something is there."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from tandem.apps.cli.router_client import send_request
from tandem.apps.client.http import Target
from tandem.core.errors import TandemError


async def chat(
    at: Target, model: str, content: str, max_tokens: int = 12, more: Mapping[str, Any] | None = None
) -> tuple[int, Any]:
    """Status and answer of a greedy chat; `more` are further fields of the request."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0.0,
        **(more or {}),
    }
    status, answer = await send_request(at, "POST", "/v1/chat/completions", msgspec.json.encode(body), 60)
    return status, msgspec.json.decode(answer) if answer.startswith(b"{") else answer


async def answered(
    at: Target,
    model: str,
    content: str,
    max_tokens: int = 12,
    within_s: float = 90.0,
    more: Mapping[str, Any] | None = None,
) -> Any:
    """The first answer: until workers are there requests are refused."""

    async def ask() -> Any:
        status, answer = await chat(at, model, content, max_tokens, more)
        return answer if status == 200 else None

    return await eventually(ask, within_s)


async def listed(at: Target, path: str) -> list[dict[str, Any]]:
    """The `data` of a list. Raises `link_lost` for any other answer: the ingress has no router at first."""
    status, answer = await send_request(at, "GET", path)
    if status != 200:
        raise TandemError("link_lost", f"{path} is answered with {status}: {answer[:200]!r}")
    found: list[dict[str, Any]] = msgspec.json.decode(answer)["data"]
    return found


async def eventually(look: Callable[[], Awaitable[Any]], within_s: float = 60.0) -> Any:
    """The first result of `look` that is not empty; what is not there to be asked is asked again. Raises
    `TimeoutError` with the last reason."""
    last = "nothing was found"
    try:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    if found := await look():
                        return found
                except TandemError as error:
                    last = str(error)
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise TimeoutError(f"not within {within_s:g} s: {last}") from None


async def end_hub() -> None:
    """Kill the hub, or its stand-in, if there is one, and forget what it has kept: each module has one of its own."""
    import ray

    from tandem.apps.ray.hub_client import HUB, NAMESPACE
    from tandem.apps.ray.ray_serving import RayStore

    async def gone() -> bool:
        try:
            ray.kill(ray.get_actor(HUB, namespace=NAMESPACE))
        except ValueError:
            return True
        return False

    await eventually(gone)
    await RayStore().clear()

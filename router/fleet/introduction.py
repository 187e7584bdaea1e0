"""The first messages on a link to a worker."""

import asyncio

from tandem.core.errors import TandemError
from tandem.core.messages import RouterMessage
from tandem.link.protocol import RouterLink


async def first_frame(link: RouterLink, within_s: float) -> tuple[RouterMessage, ...]:
    """What a worker sends first, its introduction before all else. Raises `link_lost` when none comes in time."""
    try:
        async with asyncio.timeout(within_s):
            return await link.tokens.receive()
    except TimeoutError:
        raise TandemError("link_lost", f"{link.peer} did not introduce itself within {within_s:g} s") from None

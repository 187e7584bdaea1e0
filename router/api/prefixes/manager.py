"""Pinned prefixes, from the client's request to its answer: what is computed, where it is kept, and letting go."""

from hashlib import blake2b
from typing import Final

import msgspec

from router.api.auth import Caller
from router.api.core import ApiCore, prompt_bounds
from router.api.openai.answer import total, usage_object
from router.api.prefixes.compute import run_beside, run_on_one
from router.api.prefixes.pinned import Prefix, Prefixes, QuotaReservation
from router.api.prefixes.request import PrefixRequest, show
from router.api.prefixes.text import prefix_tokens
from router.api.request_context import RequestContext
from router.api.request_spec import salt_of
from router.generation import BlockShape, Generation, PinnedPrefixes, PrefixReplica, ServedModel, Usage
from tandem.core.errors import TandemError
from tandem.core.messages import Pin
from tandem.core.request import Sampling, Stopping

_NO_TIERS: Final = (
    "no prefix can be pinned here: none of the model's workers has a tier below its engine's pool (tiers.dram_bytes,"
    " tiers.nvme_bytes). Prefixes in the pools are reused all the same"
)


class PendingPin(msgspec.Struct, frozen=True):
    """A prefix that has been checked, charged and given room: it remains to be computed."""

    generation: Generation
    pin: Pin
    shape: BlockShape
    replicas: int
    room: QuotaReservation


class PrefixManager:
    """All a client can do with prefixes. One per router."""

    def __init__(self, door: ApiCore) -> None:
        self._core = door
        self._prefixes = Prefixes(door.settings.prefixes)

    async def order(self, arrival: RequestContext, request: PrefixRequest) -> PendingPin:
        """Check, tokenize and charge. Raises what a request for an answer raises, and `over_quota` without room."""
        door, plain = self._core, request.generating()
        model, renderer = door.served(arrival.caller, plain)
        shape = self._pinned_prefixes.shape(model.base)
        if shape is None:
            raise TandemError("no_workers", f"no worker serves the model {model.name!r} now", retry_after_s=1.0)
        if not shape.keeps:
            raise TandemError("unsupported_parameter", _NO_TIERS)
        timeout_s = door.bounded_s(request.timeout)
        left_s = arrival.received + timeout_s - self._now()
        packed = await prefix_tokens(plain, renderer, door.services.tokenizing, prompt_bounds(model, left_s))
        pin = Pin(request.priority or 0, request.ttl_s or door.settings.prefixes.ttl_s)
        generation = Generation(
            request_id=arrival.request_id,
            model=model.base,
            adapter=model.name if model.parent else "",
            tenant=arrival.caller.tenant,
            tenant_salt=salt_of(arrival.caller, request.cache_salt),
            prompt=_whole_blocks(packed, shape, model, "prompt" if request.messages is None else "messages"),
            n=1,
            seed=0,
            sampling=Sampling(temperature=0.0),
            stopping=Stopping(max_tokens=1, ignore_eos=True),
            timeout_s=timeout_s,
            received=arrival.received,
            received_wall=arrival.received_wall,
            trace=arrival.trace,
            pin=pin,
            kv_bytes_max=arrival.caller.quota.kv_bytes_max,
        )
        return self._charged(arrival, generation, pin, shape, request.replicas or 1)

    def _charged(
        self, arrival: RequestContext, generation: Generation, pin: Pin, shape: BlockShape, replicas: int
    ) -> PendingPin:
        caller = arrival.caller
        size = generation.prompt_tokens // shape.tokens * shape.bytes * replicas
        room = self._prefixes.take(
            caller.tenant, _digest(generation), size, caller.quota.kv_bytes_max, generation.received
        )
        try:
            self._core.charge(arrival, generation.prompt_tokens)
        except TandemError:
            self._prefixes.give_back(room)
            raise
        return PendingPin(generation, pin, shape, replicas, room)

    async def carry_out(self, arrival: RequestContext, order: PendingPin) -> dict[str, object]:
        """Compute the prefix on as many of the requested workers as there are; gives it as clients see it.

        Raises the error that the first of them fails with, and `no_workers` when no worker keeps the prefix.
        """
        try:
            usages, problems = await self._compute(arrival, order)
            holders = tuple(kept for usage in usages for kept in usage.kept)
            if not holders:
                raise TandemError("no_workers", "the prefix was computed, but no worker had room to keep it")
            prefix = self._prefix(order, holders)
            before = self._prefixes.keep(order.room, prefix, self._now())
        finally:
            self._prefixes.give_back(order.room)
        if before is not None:
            self._unpin(before, before.names, [each for each in before.holders if each not in holders])
        shown = show(prefix, holders, usage_object(total(usages)))
        return {**shown, "problems": problems} if problems else shown

    async def _compute(self, arrival: RequestContext, order: PendingPin) -> tuple[list[Usage], list[str]]:
        """The usage of each request, and why there are not more. Copies beyond the requested number are released
        again."""
        usages = [await run_on_one(self._core, arrival, order.generation)]
        try:
            if not usages[0].kept:
                # Whoever was to keep it may have been lost on the way. Where it was computed instead it is cached.
                usages = [await run_beside(self._core, arrival, order.generation, [])]
            while len(usages) < order.replicas and usages[-1].kept:
                usage = await run_beside(self._core, arrival, order.generation, usages)
                if any(kept in earlier.kept for earlier in usages for kept in usage.kept):
                    return usages, [f"{len(usages)} of {order.replicas} workers keep it: there are no others"]
                usages.append(usage)
        except TandemError as error:
            return usages, [f"{len(usages)} of {order.replicas} workers keep it: {error.message}"]
        return [self._with_one_holder(usage, order.generation) for usage in usages], []

    def _with_one_holder(self, usage: Usage, generation: Generation) -> Usage:
        """The usage with only one holder. When prefill was slow to end, decode may keep the prefix as well."""
        if len(usage.kept) < 2:
            return usage
        best = max(usage.kept, key=lambda kept: kept.blocks)
        for other in usage.kept:
            if other is not best:
                self._pinned_prefixes.unpin(
                    other, self._pinned_prefixes.names(other, generation), generation.tenant_salt
                )
        return msgspec.structs.replace(usage, kept=(best,))

    def _prefix(self, order: PendingPin, holders: tuple[PrefixReplica, ...]) -> Prefix:
        services, generation, pin = self._core.services, order.generation, order.pin
        longest = max(holders, key=lambda kept: kept.blocks)
        wall = services.clock.wall()
        return Prefix(
            id=f"prefix-{services.entropy.token(12).hex()}",
            tenant=generation.tenant,
            tenant_salt=generation.tenant_salt,
            model=generation.asked_model,
            digest=_digest(generation),
            tokens=longest.blocks * order.shape.tokens,
            blocks=longest.blocks,
            kv_bytes=sum(kept.blocks for kept in holders) * order.shape.bytes,
            priority=pin.priority,
            ttl_s=pin.ttl_s,
            created_wall=wall,
            expires=self._now() + pin.ttl_s,
            expires_wall=wall + pin.ttl_s,
            holders=holders,
            names=self._pinned_prefixes.names(longest, generation),
        )

    # -- what there is --

    def listed(self, caller: Caller) -> list[dict[str, object]]:
        """The tenant's own, the oldest first."""
        return [self._shown(prefix) for prefix in self._prefixes.of(caller.tenant, self._now())]

    def one(self, caller: Caller, prefix_id: str) -> dict[str, object]:
        """Raises `not_found`, also for another tenant's."""
        return self._shown(self._prefixes.find(caller.tenant, prefix_id, self._now()))

    def unpin(self, caller: Caller, prefix_id: str) -> dict[str, object]:
        """Unpin a prefix: its blocks stay until their room is needed. Raises `not_found`."""
        prefix = self._prefixes.find(caller.tenant, prefix_id, self._now())
        self._unpin(prefix, self._prefixes.forget(prefix), prefix.holders)
        return {"id": prefix.id, "object": "cache.prefix.deleted", "deleted": True}

    def _shown(self, prefix: Prefix) -> dict[str, object]:
        return show(prefix, self._pinned_prefixes.still(prefix.holders, prefix.names))

    def _unpin(
        self, prefix: Prefix, names: bytes, holders: "tuple[PrefixReplica, ...] | list[PrefixReplica]"
    ) -> None:
        for holder in holders if names else ():
            self._pinned_prefixes.unpin(holder, names, prefix.tenant_salt)

    @property
    def _pinned_prefixes(self) -> PinnedPrefixes:
        keeper = self._core.services.keeper
        if keeper is None:
            raise TandemError("unsupported_parameter", "this router keeps no prefixes")
        return keeper

    def _now(self) -> float:
        return self._core.services.clock.now()


def _digest(generation: Generation) -> bytes:
    """Digest of what makes two prefixes the same: the requested model, the tenant's salt and the prompt."""
    whose = f"{generation.asked_model}\x00{generation.tenant_salt}\x00".encode()
    return blake2b(whose + generation.prompt, digest_size=16).digest()


def _whole_blocks(packed: bytes, shape: BlockShape, model: ServedModel, param: str) -> bytes:
    """The part of a prefix that fills whole blocks: no other is ever reused."""
    tokens = len(packed) // 4
    if tokens < shape.tokens:
        problem = f"the prefix has {tokens} tokens, and only whole blocks of {shape.tokens} tokens can be kept"
        raise TandemError("invalid_request", problem, param=param)
    if tokens >= model.context_tokens:
        problem = f"the model's context is {model.context_tokens} tokens; the prefix has {tokens} and leaves no room"
        raise TandemError("context_length_exceeded", problem, param=param)
    return packed[: tokens // shape.tokens * shape.tokens * 4]

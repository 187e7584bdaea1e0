"""The front door: what both public interfaces do with a request between decoding it and dispatching it."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from router.api.affinity_key import affinity_key
from router.api.auth import Caller
from router.api.body_budget import BodyBudget, BodyShare
from router.api.body_shape import SMALL_BYTES, UNITS_MIN, check_shape
from router.api.chat_templates.chat_template import Tools
from router.api.chat_templates.render import Renderer
from router.api.chat_templates.templates import Bounds
from router.api.conversations import AllConversations
from router.api.explain import ROOT, TraceExplainer, ids_of
from router.api.idempotency import IdempotencyKeys, fingerprint
from router.api.message_shape import check_message
from router.api.model_names import ModelNames, revision_asked
from router.api.openai import parameters
from router.api.openai.images import FEATURE as IMAGES
from router.api.openai.images import images
from router.api.openai.schema import ChatRequest, CompletionRequest
from router.api.openai.scoring import check_scored
from router.api.prompt_texts import PromptTexts
from router.api.quota import Quotas
from router.api.request_context import RequestContext, RequestRegistry
from router.api.request_features import opened, request_features
from router.api.request_spec import request_specs, salt_of
from router.api.response import Answer, ApiResponse, ResponseCallbacks, ResponseEnd
from router.api.resumption import ResumedStarter, encode_resume_context
from router.api.settings import ApiSettings
from router.api.telemetry import RequestTelemetry
from router.generation import (
    Generation,
    Generator,
    PinnedPrefixes,
    RequestStatus,
    Resumed,
    Resumer,
    Seeker,
    ServedModel,
)
from router.tokenization.tokenizing import Tokenizing
from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.metrics import Meter
from tandem.core.request import spec_fields
from tandem.core.slo import DEFAULT, Slo
from tandem.core.spans import Recorder, Span

_U64: Final = (1 << 64) - 1
_TOKEN_BYTES: Final = 64
"""Maximum bytes of a body for each token of a context; an escaped character takes twelve."""
_BESIDE_PROMPTS_BYTES: Final = 1 << 20
"""Bytes that a body may have besides its prompts, in tools, schemas and the like."""

_CLIENTS_FAULT: Final = frozenset(
    ("invalid_request", "unsupported_parameter", "context_length_exceeded", "model_not_found", "body_too_large")
)

ApiRequest = ChatRequest | CompletionRequest


def nothing_coming() -> Mapping[str, str]:
    """All renderers there will be are there."""
    return {}


def default_slo(model: str) -> Slo:
    """The default SLO, for services that configure none."""
    return DEFAULT


@dataclass(frozen=True)
class ApiDeps:
    """The dependencies of `ApiCore`. `renderers` are keyed by the model name that clients use."""

    generator: Generator
    renderers: Mapping[str, Renderer]
    tokenizing: Tokenizing
    clock: Clock
    entropy: Entropy
    meter: Meter
    recorder: Recorder
    resumer: Resumer | None = None
    keeper: PinnedPrefixes | None = None
    seeker: Seeker | None = None
    coming: Callable[[], Mapping[str, str]] = nothing_coming
    """Models without a renderer yet, each with the reason."""
    slo: Callable[[str], Slo] = default_slo
    """Gives the SLO that requests for a model are to meet."""


class ApiCore:
    """Validates, renders, tokenizes, starts and keeps track of requests."""

    def __init__(
        self, services: ApiDeps, settings: ApiSettings | None = None, deadlines: Deadlines | None = None
    ) -> None:
        self.settings = settings = settings or ApiSettings()
        self._total_s = (deadlines or Deadlines()).total_s
        self.services = services
        self.bodies = BodyBudget(settings.bodies_bytes_max)
        self.arrivals = RequestRegistry(services.clock, services.entropy)
        self._ledger = RequestTelemetry(
            services.clock, services.entropy, services.meter, services.recorder, services.slo
        )
        self._asked = ModelNames()
        self._quotas = Quotas()
        self._keys = IdempotencyKeys(settings.idempotency)
        self._texts = PromptTexts(settings.prompt_texts_bytes_max)
        most = settings.conversations_bytes_max
        self._conversations = AllConversations(services.tokenizing, services.clock, services.meter, most)
        self._open: dict[str, ApiResponse] = {}
        self._draining = False
        self._counting = asyncio.Lock()

    @property
    def open_requests(self) -> int:
        """Requests that have been started and have not ended."""
        return len(self._open)

    def drain(self) -> None:
        """Refuse new requests with `draining` from now on."""
        self._draining = True

    def end_all(self) -> int:
        """End what still runs with `draining`; gives how many that were."""
        left = list(self._open.values())
        for exchange in left:
            exchange.fail(TandemError("draining", "the router is stopping", retry_after_s=1.0))
        return len(left)

    def not_ready(self) -> str | None:
        """Why a request could not be served now, or None."""
        return "the router is stopping" if self._draining else self.services.generator.ready()

    def body_bytes_max(self, announced: bytes | None, prompts_max: int) -> int:
        """Bytes that a body of so many prompts may have, given its announced length. More than the longest context
        takes is not read, unless images are accepted."""
        most = self.settings.body_bytes_max
        if announced is not None and announced.isdigit() and int(announced) <= _BESIDE_PROMPTS_BYTES:
            return most
        models = self.services.generator.models()
        if not models or any(IMAGES in model.features for model in models):
            return most
        return min(most, _BESIDE_PROMPTS_BYTES + prompts_max * _TOKEN_BYTES * _longest(models))

    @contextmanager
    def reading(self, arrival: RequestContext, retried: bool) -> Iterator[BodyShare]:
        """Context in which a request's body is read: yields its share of the budget and records the bytes that it
        takes. Raises `over_quota` before anything is read for a tenant that can have nothing now, except for a
        request that may be `retried`, since that may be paid already."""
        caller = arrival.caller
        if not retried:
            self._quotas.check(caller.tenant, caller.quota, self.services.clock.now())
        with self.bodies.share() as share:
            try:
                yield share
            finally:
                arrival.body_bytes = share.taken

    async def check_message(self, raw: bytes) -> None:
        """Check a gRPC message as `check_shape` checks a body."""
        if len(raw) > SMALL_BYTES:
            await self._count(check_message(raw, self._units_max()))

    async def check_shape(self, body: bytes) -> None:
        """Raises `invalid_request` when a body has too much in it to be decoded at once. One is counted at a time, in
        slices."""
        if len(body) > SMALL_BYTES:
            await self._count(check_shape(body, self._units_max()))

    def _units_max(self) -> int:
        return max(UNITS_MIN, 2 * _longest(self.services.generator.models()))

    async def _count(self, slices: Iterator[None]) -> None:
        async with self._counting:
            for _ in slices:
                await asyncio.sleep(0)

    def claim(self, arrival: RequestContext, key: str | None, kind: str, body: bytes) -> None:
        """Hold the client's idempotency key, if it gave one, until the request is over.

        Raises `conflict` while another request holds it, `invalid_request` when it was used for something else.
        """
        if key is not None:
            asked, now = fingerprint(kind, body), self.services.clock.now()
            arrival.claim = self._keys.claim(arrival.caller.tenant, key, asked, now)

    async def prepare(self, arrival: RequestContext, request: ApiRequest) -> tuple[Generation, ...]:
        """Everything up to token ids. Raises typed errors (`tandem.core.errors`)."""
        model, renderer = self.served(arrival.caller, request)
        wanted = request_features(request, model, renderer.dialect)
        files = images(request, model) if isinstance(request, ChatRequest) else ()
        started = self.services.clock.wall()
        timeout_s = self.bounded_s(request.timeout)
        left_s = arrival.received + timeout_s - self.services.clock.now()
        packed = await self._tokenize(arrival.caller, request, model, wanted.tools, left_s)
        if wanted.speech is not None:
            arrival.speech = opened(wanted.speech, packed[0], renderer.token_bytes)
        arrival.parts = len(packed)
        self._ledger.tokenized(arrival, started, sum(map(len, packed)) // 4)
        specs = request_specs(request, packed, model, renderer, arrival.caller, wanted)
        seed = self.services.entropy.u64() if request.seed is None else request.seed & _U64
        resume = encode_resume_context(request, arrival.received_wall, arrival.speech)
        begun = affinity_key(request)
        generations = tuple(
            Generation(
                **spec_fields(spec),
                request_id=arrival.part_id(number),
                model=model.base,
                tenant=arrival.caller.tenant,
                n=request.n or 1,
                seed=seed,
                timeout_s=timeout_s,
                received=arrival.received,
                received_wall=arrival.received_wall,
                trace=arrival.trace,
                resume=resume,
                cache_key=_cache_key(arrival.caller, request.cache_salt, request.prompt_cache_key),
                beginning=begun,
                revision=revision_asked(request.model, model),
                images=files,
            )
            for number, spec in enumerate(specs)
        )
        if request.resumable:
            self._check_resumable(generations)
        check_scored(request, sum(map(len, packed)) // 4)
        self.charge(arrival, sum(map(len, packed)) // 4)
        if self.services.seeker is not None:
            await self.services.seeker.seek(generations[0])
        return generations

    def served(self, caller: Caller, request: ApiRequest) -> tuple[ServedModel, Renderer]:
        """The model that is asked for and its text side. Raises typed errors (`tandem.core.errors`)."""
        if self._draining:
            raise TandemError("draining", "the router is stopping", retry_after_s=1.0)
        parameters.check(request)
        model, renderer = self._model(request.model)
        caller.check_model(model.name)
        return model, renderer

    def bounded_s(self, timeout_s: float | None) -> float:
        """Seconds that a request that asks for `timeout_s` may take."""
        return min(timeout_s or self._total_s, self._total_s)

    def charge(self, arrival: RequestContext, prompt_tokens: int) -> None:
        """Charge the request and its prompt, once under an idempotency key. Raises `over_quota`."""
        caller, claim = arrival.caller, arrival.claim
        arrival.charged = True
        if claim is not None and claim.admitted:
            return
        self._quotas.admit(caller.tenant, caller.quota, prompt_tokens, self.services.clock.now())
        if claim is not None:
            claim.admitted = True

    def start(self, arrival: RequestContext, generations: tuple[Generation, ...], answer: Answer) -> ApiResponse:
        """Dispatch. Refusals reach the client through `answer`."""
        model = generations[0].model

        def ended(how: ResponseEnd) -> None:
            self._open.pop(arrival.request_id, None)
            self._ledger.ended(arrival, how, model)
            for generation in generations:
                self._texts.keep(generation.tenant, generation.request_id, generation.prompt)
            caller, claim, now = arrival.caller, arrival.claim, self.services.clock.now()
            tokens = how.delivered if claim is None else claim.uncharged(how.delivered)
            self._quotas.spend(caller.tenant, caller.quota, tokens, now)
            self._let_go(arrival)

        reports = ResponseCallbacks(self.services.clock.now, lambda gap_s: self._ledger.gap(model, gap_s), ended)
        exchange = ApiResponse(generations, answer, reports)
        self._open[arrival.request_id] = exchange
        exchange.start(self.services.generator)
        return exchange

    async def find(self, request_id: str, caller: Caller) -> Resumed:
        """A resumable request, wherever it runs. Raises `not_found` also for other tenants' ids, and `draining`,
        `queue_full`, `not_allowed`."""
        resumer, meter = self.services.resumer, self.services.meter
        try:
            if resumer is None:
                raise TandemError("not_found", f"this router cannot resume the request {request_id!r}")
            found = await resumer.resume(request_id, caller.tenant)
            caller.check_model(found.generation.asked_model)
        except TandemError as error:
            meter.add("tandem_resumes_total", 1.0, error.code)
            raise
        meter.add("tandem_resumes_total", 1.0, "found")
        return found

    def renderer(self, model: str) -> Renderer:
        """Whose tokens are the model's. Raises `model_not_found`."""
        renderer = self.services.renderers.get(model)
        if renderer is None:
            raise TandemError("model_not_found", f"the model {model!r} is not served here", param="model")
        return renderer

    def rejoin(self, caller: Caller, resumed: Resumed, rejoining: ResumedStarter, answer: Answer) -> ApiResponse:
        """Go on with the answer of a resumable request."""
        generation = resumed.generation
        arrival = self.arrivals.again(generation, caller)

        def ended(how: ResponseEnd) -> None:
            if self._open.get(arrival.request_id) is exchange:
                del self._open[arrival.request_id]
            self._ledger.resumed(arrival, how, generation.model)
            self._quotas.spend(caller.tenant, caller.quota, how.delivered, self.services.clock.now())
            self._let_go(arrival)

        reports = ResponseCallbacks(
            self.services.clock.now, lambda gap_s: self._ledger.gap(generation.model, gap_s), ended
        )
        exchange = ApiResponse((generation,), answer, reports)
        exchange.start(rejoining)
        if not exchange.ended:
            self._open[arrival.request_id] = exchange
            self.arrivals.hold(arrival)
        return exchange

    def refused(self, arrival: RequestContext, error: TandemError) -> None:
        """Close a request that ended before it was started: count it, keep its span, release its id and key. A
        request that its client should not have sent is charged: reading it took as long as reading one that is
        answered."""
        paid = arrival.charged or (arrival.claim is not None and arrival.claim.admitted)
        if error.code in _CLIENTS_FAULT and not paid:
            caller = arrival.caller
            self._quotas.fine(caller.tenant, caller.quota, arrival.body_bytes, self.services.clock.now())
        self._let_go(arrival)
        self._ledger.refused(arrival, error.code, error.message)

    def left(self, arrival: RequestContext) -> None:
        """The client went away before its request was started."""
        self._let_go(arrival)
        self._ledger.refused(arrival, "cancelled", "client disconnected")

    def _let_go(self, arrival: RequestContext) -> None:
        self.arrivals.release(arrival)
        if arrival.claim is not None:
            self._keys.release(arrival.claim, self.services.clock.now())

    def standing(self, request_id: str, caller: Caller) -> RequestStatus | None:
        """The status of a running request; None when no request of this id runs, or it belongs to another tenant."""
        exchange = self._open.get(request_id)
        if exchange is None or not (caller.operator or exchange.generations[0].tenant == caller.tenant):
            return None
        return exchange.standing()

    def story(self, request_id: str, caller: Caller) -> tuple[Span, ...]:
        """The spans of a request that has ended; empty when the request is unknown or another tenant's. Where several
        tenants had requests under one id, an operator sees the first."""
        spans_of = self.services.recorder.spans
        for root in spans_of(request_id, None if caller.operator else caller.tenant):
            if root.name == ROOT:
                ids, tenant = ids_of(request_id, root), str(root.attributes.get("tenant", ""))
                renderer = self.services.renderers.get(str(root.attributes.get("model", "")))
                return TraceExplainer(root, self._texts, renderer, operator=caller.operator).tell(
                    {each: spans_of(each, tenant) for each in ids}
                )
        return ()

    def _model(self, name: str) -> tuple[ServedModel, Renderer]:
        renderers = self.services.renderers
        model = self._asked.find(self.services.generator.models(), name)
        if model is not None and (renderer := renderers.get(model.base)) is not None:
            return model, renderer
        coming = self.services.coming()
        asked = name if model is None else model.base
        if (why := coming.get(asked) or coming.get(name.rpartition("@")[0])) is not None:
            problem = f"the model {name!r} cannot be asked for yet: {why}"
            raise TandemError("no_workers", problem, retry_after_s=1.0)
        if name in renderers:
            raise TandemError("no_workers", f"no worker serves the model {name!r} now", retry_after_s=1.0)
        raise TandemError("model_not_found", f"the model {name!r} does not exist", param="model")

    async def _tokenize(
        self, caller: Caller, request: ApiRequest, model: ServedModel, tools: Tools | None, within_s: float
    ) -> list[bytes]:
        renderer = self.services.renderers[model.base]
        if isinstance(request, ChatRequest):
            turns = parameters.messages(request)
            self._check_sequences(request.n or 1)
            salt = salt_of(caller, request.cache_salt)
            conversations = self._conversations.of(model.base, renderer)
            packed = [await conversations.tokens(turns, salt, tools, prompt_bounds(model, within_s))]
        else:
            asked = parameters.prompts(request, renderer.vocab_size)
            self._check_sequences(len(asked) * (request.n or 1))
            characters = sum(len(prompt) for prompt in asked if isinstance(prompt, str))
            packed = await self.services.tokenizing.run(lambda: _pack(asked, renderer), characters, within_s)
        if not all(packed):
            raise TandemError("invalid_request", "the prompt has no tokens", param="prompt")
        return packed

    def _check_resumable(self, generations: tuple[Generation, ...]) -> None:
        if len(generations) > 1:
            raise TandemError("invalid_request", "a resumable request has one prompt", param="resumable")
        most, asked = self.settings.resumable_tokens_max, generations[0].n * generations[0].stopping.max_tokens
        if asked > most:
            raise TandemError(
                "invalid_request",
                f"n times max_tokens is {asked}, but of a resumable answer at most {most} tokens are kept",
                param="resumable",
            )

    def _check_sequences(self, count: int) -> None:
        most = self.settings.sequences_max
        if count > most:
            raise TandemError(
                "invalid_request",
                f"{count} sequences were asked for (n times prompts); at most {most} are served",
                param="n",
            )


def prompt_bounds(model: ServedModel, within_s: float) -> Bounds:
    """Bounds on rendering a conversation: as many characters as a body may have bytes."""
    return Bounds(within_s, _BESIDE_PROMPTS_BYTES + _TOKEN_BYTES * model.context_tokens)


def _longest(models: Iterable[ServedModel]) -> int:
    """Tokens of the longest context."""
    return max((model.context_tokens for model in models), default=0)


def _cache_key(caller: Caller, cache_salt: str | None, key: str | None) -> str:
    """The client's key, which no other tenant's can equal: what placement remembers of it is the tenant's own."""
    return f"{salt_of(caller, cache_salt)}\x00{key}" if key else ""


def _pack(prompts: list[str | list[int]], renderer: Renderer) -> list[bytes]:
    return [renderer.text(prompt) if isinstance(prompt, str) else pack_tokens(prompt) for prompt in prompts]

"""The OpenAI REST interface as a plain ASGI application.

POST /v1/chat/completions   POST /v1/completions   GET /v1/models[/{id}]   GET /v1/requests/{id}[/events]
GET /v1/workers            GET /v1/revisions             GET /v1/explain/fleet
POST, GET /v1/cache/prefixes   GET, DELETE /v1/cache/prefixes/{id}
GET /health                 GET /ready             GET /metrics
"""

import asyncio
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, Final

import msgspec

from router.alarms import Alarm, Alarms
from router.api.auth import Caller, Keys
from router.api.core import ApiCore, ApiRequest
from router.api.errors import check_method
from router.api.model_listing import model_object
from router.api.model_names import by_name
from router.api.openai.answer import ChatFormat, CompletionFormat, Format, Label
from router.api.openai.decode import decode_chat, decode_completion
from router.api.openai.defaults import NEUTRAL
from router.api.openai.parsed import ParsedChatFormat
from router.api.openai.schema import ChatRequest
from router.api.openai.scoring import scoring_of
from router.api.prefixes.rest import PREFIXES, PrefixRest
from router.api.request_context import RequestContext
from router.api.response import Answer, ApiResponse
from router.api.rest.body import ClientGone, check_encoding, discard_body, gone, read_body
from router.api.rest.cors import Cors
from router.api.rest.http_request import HttpRequest
from router.api.rest.parsed_stream import ParsedStream, ResumableParsedStream
from router.api.rest.probes import METRICS, Probes
from router.api.rest.resumable_sse import ResumableAnswer
from router.api.rest.sse import CollectedAnswer, StreamedAnswer, begin_error, respond, respond_error
from router.api.resumption import ResumedStarter, decode_resume_context, form_of, place_of, source_of
from router.fleet.listing import ListWorkers, WorkerListing
from router.fleet.split_listing import FleetOutlook
from router.generation import Generation, ServedModel
from router.http_server.cycle import Receive
from router.http_server.response_writer import CONNECTION_EXTENSION, Connection, Header, ResponseWriter, Send
from tandem.core.errors import TandemError

Scope = MutableMapping[str, Any]
Decode = Callable[[bytes], ApiRequest]

_MODELS: Final = "/v1/models/"
_REQUESTS: Final = "/v1/requests/"
_EVENTS: Final = "/events"
_WITHOUT_PAIRS: Final = b"pairs=none"
_PROBES: Final = ("/health", "/ready", METRICS)


class _NoRevisions(msgspec.Struct, frozen=True):
    """The revision listing of a router whose core keeps no counts."""

    object: str = "list"
    data: tuple[str, ...] = ()


def _no_revisions(models: tuple[str, ...]) -> msgspec.Struct:
    return _NoRevisions()


def _no_workers(*, pairs: bool) -> tuple[WorkerListing, ...]:
    return ()


def _no_outlooks(models: tuple[str, ...]) -> tuple[FleetOutlook, ...]:
    return ()


class RestApp:
    """The application. `metrics` renders the process's metrics for Prometheus (here for operators; `probes` is the
    application of a port where everybody may have them), `workers` lists all workers,
    `revisions` what became of requests per revision of these models, or of all if none is named, `outlooks` likewise
    which of their workers take prompts for others."""

    def __init__(
        self,
        door: ApiCore,
        keys: Keys,
        metrics: Callable[[], bytes],
        workers: ListWorkers = _no_workers,
        revisions: Callable[[tuple[str, ...]], msgspec.Struct] = _no_revisions,
        outlooks: Callable[[tuple[str, ...]], Iterable[FleetOutlook]] = _no_outlooks,
    ) -> None:
        self._core = door
        self._keys = keys
        self.probes = Probes(door.not_ready, metrics)
        self._workers = workers
        self._revisions = revisions
        self._outlooks = outlooks
        self._prefixes = PrefixRest(door, keys)
        self._alarms: Alarms | None = None
        self._cors = Cors(door.settings.cors_origins) if door.settings.cors_origins else None
        self._posts: dict[str, tuple[str, Decode]] = {
            "/v1/chat/completions": ("chatcmpl", decode_chat),
            "/v1/completions": ("cmpl", decode_completion),
        }
        self._gets: dict[str, Callable[[HttpRequest], None]] = {
            "/v1/models": self._list_models,
            "/v1/workers": self._list_workers,
            "/v1/revisions": self._list_revisions,
            "/v1/explain/fleet": self._explain_fleet,
            **dict.fromkeys(_PROBES, self._probe),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "start the server with lifespan and websockets off"
        watch = _Watch()
        outlet = ResponseWriter(send, self._core.settings.outlet, _connection(scope), watch.slow)
        call = HttpRequest(scope["path"], dict(scope["headers"]), receive, outlet, scope.get("query_string", b""))
        method = scope["method"]
        try:
            if self._cors is not None:
                outlet.besides = self._cors.headers(call.headers.get(b"origin"))
            if method == "OPTIONS" and outlet.besides:
                self._preflight(call)
            else:
                await self._route(method, call, watch)
        except TandemError as error:
            respond_error(outlet, error, ())
        except ClientGone:
            pass
        finally:
            # The one reference that leads back here: without it everything of a request goes at once.
            watch.exchange = None
            await outlet.close()

    async def _route(self, method: str, call: HttpRequest, watch: "_Watch") -> None:
        post = self._posts.get(call.path)
        if post is not None:
            check_method(method, ("POST",), call.path)
            await self._generate(call, watch, *post)
            return
        if call.path.startswith(PREFIXES):
            await self._prefixes.serve(method, call)
            return
        show = self._gets.get(call.path)
        events = call.path.startswith(_REQUESTS) and call.path.endswith(_EVENTS)
        if show is None and not events and not call.path.startswith((_MODELS, _REQUESTS)):
            raise TandemError("not_found", f"there is nothing at {call.path}")
        check_method(method, ("GET",) if events else ("GET", "HEAD"), call.path)
        if show is not None:
            show(call)
        elif events:
            await self._resume(call, watch, call.path.removeprefix(_REQUESTS).removesuffix(_EVENTS))
        elif call.path.startswith(_REQUESTS):
            self._one_request(call, call.path.removeprefix(_REQUESTS))
        else:
            self._one_model(call, call.path.removeprefix(_MODELS))

    def _preflight(self, call: HttpRequest) -> None:
        """A browser asks whether a page may ask."""
        assert self._cors is not None
        call.outlet.besides = self._cors.preflight(call.headers.get(b"origin"))
        call.outlet.whole(204, (), b"")

    # -- generating --

    async def _generate(self, call: HttpRequest, watch: "_Watch", kind: str, decode: Decode) -> None:
        arrival = self._core.arrivals.arrive(call.header(b"x-request-id"), call.header(b"traceparent"), kind)
        headers = ((b"x-request-id", arrival.request_id.encode()),)
        try:
            generations, answer = await self._read(call, arrival, kind, decode, headers)
        except TandemError as error:
            self._core.refused(arrival, error)
            await self._refuse(call, error, headers)
        except (ClientGone, asyncio.CancelledError):
            self._core.left(arrival)
            raise
        else:
            watch.exchange = exchange = self._core.start(arrival, generations, answer)
            await self._settle(call, exchange, generations[0].timeout_s)

    async def _read(
        self, call: HttpRequest, arrival: RequestContext, kind: str, decode: Decode, headers: tuple[Header, ...]
    ) -> tuple[tuple[Generation, ...], Answer]:
        """The generations to start, and the answer that takes their output. The body and what was decoded from it are
        released here: answers last for minutes, and megabytes of metadata would stay in memory unused."""
        arrival.caller = self._caller(call)
        key = call.header(b"idempotency-key")
        with self._core.reading(arrival, retried=key is not None) as share:
            check_encoding(call.headers.get(b"content-encoding"))
            announced = call.headers.get(b"content-length")
            prompts = 1 if kind == "chatcmpl" else self._core.settings.sequences_max
            most = self._core.body_bytes_max(announced, prompts)
            body = await read_body(call.receive, announced, self._core.settings, share, most)
            await self._core.check_shape(body)
            self._core.claim(arrival, key, kind, body)
            request = decode(body)
            generations = await self._core.prepare(arrival, request)
        return generations, self._answer(call.outlet, arrival, request, generations, headers)

    async def _resume(self, call: HttpRequest, watch: "_Watch", request_id: str) -> None:
        """The rest of a resumable stream."""
        caller = self._caller(call)
        resumed = await self._core.find(request_id, caller)
        generation = resumed.generation
        after = place_of(call.header(b"last-event-id"), generation.n)
        headers = ((b"x-request-id", request_id.encode()),)
        known = decode_resume_context(generation)
        form = form_of(known, request_id, self._core.renderer(generation.model), source_of(generation))
        chars = resumed.chars(after)
        answer = _numbered(call.outlet, form, headers, known.include_usage, after, chars)
        rejoining = ResumedStarter(resumed, after, answer)
        watch.exchange = exchange = self._core.rejoin(caller, resumed, rejoining, answer)
        left_s = generation.received + generation.timeout_s - self._core.services.clock.now()
        await self._settle(call, exchange, max(0.0, left_s))

    async def _refuse(self, call: HttpRequest, error: TandemError, headers: tuple[Header, ...]) -> None:
        if error.code != "body_too_large":
            respond_error(call.outlet, error, headers)
            return
        begin_error(call.outlet, error, (*headers, (b"connection", b"close")))
        await discard_body(call.receive, self._core.settings)
        call.outlet.end(b"")

    def _answer(
        self,
        outlet: ResponseWriter,
        arrival: RequestContext,
        request: ApiRequest,
        generations: tuple[Generation, ...],
        headers: tuple[Header, ...],
    ) -> Answer:
        generation = generations[0]
        include_usage = bool(request.stream_options is not None and request.stream_options.include_usage)
        label = Label(arrival.request_id, int(arrival.received_wall), request.model, include_usage)
        scoring = scoring_of(request, [each.prompt for each in generations])
        if scoring is not None:
            label = msgspec.structs.replace(label, scoring=scoring)
        if request.return_token_ids:
            label = msgspec.structs.replace(label, prompts=tuple(each.prompt for each in generations))
        vocabulary = self._core.services.renderers[generation.model]
        form: Format
        if arrival.speech is not None:
            form = ParsedChatFormat(label, vocabulary, arrival.speech, source_of(generation))
        elif isinstance(request, ChatRequest):
            form = ChatFormat(label, vocabulary)
        else:
            form = CompletionFormat(label, vocabulary)
        if request.resumable:
            start = (0,) * (request.n or 1)
            return _numbered(outlet, form, headers, include_usage, start, start)
        if request.stream and isinstance(form, ParsedChatFormat):
            return ParsedStream(outlet, form, headers, request.n or 1, include_usage)
        if request.stream:
            return StreamedAnswer(outlet, form, headers, request.n or 1, include_usage)
        return CollectedAnswer(outlet, form, headers, request.n or 1)

    async def _settle(self, call: HttpRequest, exchange: ApiResponse, timeout_s: float) -> None:
        """Wait for the end of the response or of the client, whichever comes first."""

        def late() -> None:
            exchange.fail(TandemError("deadline_exceeded", f"the request was not finished within {timeout_s:g} s"))

        alarm = Alarm(self._shared_alarms(), late)
        alarm.set(self._core.services.clock.now() + timeout_s + self._core.settings.settle_s)
        try:
            await gone(call.receive)
        finally:
            alarm.retire()
            exchange.abandon("client disconnected")

    def _shared_alarms(self) -> Alarms:
        """The alarms of all requests, on the event loop that serves them."""
        if self._alarms is None:
            self._alarms = Alarms(asyncio.get_running_loop(), self._core.services.clock)
        return self._alarms

    # -- showing --

    def _caller(self, call: HttpRequest) -> Caller:
        return self._keys.caller(call.header(b"authorization"))

    def _list_models(self, call: HttpRequest) -> None:
        caller = self._caller(call)
        models = [
            self._listed(name, model)
            for name, model in by_name(self._core.services.generator.models()).items()
            if not caller.models or model.name in caller.models
        ]
        respond(call.outlet, 200, msgspec.json.encode({"object": "list", "data": models}), ())

    def _listed(self, name: str, model: ServedModel) -> dict[str, Any]:
        renderer = self._core.services.renderers.get(model.base)
        return model_object(name, model, NEUTRAL if renderer is None else renderer.defaults)

    def _list_workers(self, call: HttpRequest) -> None:
        caller = self._caller(call)
        workers = self._workers(pairs=_WITHOUT_PAIRS not in call.query.split(b"&"))
        listed = [worker for worker in workers if not caller.models or worker.model in caller.models]
        if not caller.operator:
            listed = [worker.for_tenants() for worker in listed]
        respond(call.outlet, 200, msgspec.json.encode({"object": "list", "data": listed}), ())

    def _list_revisions(self, call: HttpRequest) -> None:
        caller = self._caller(call)
        caller.check_operator("what all tenants together have asked for")
        respond(call.outlet, 200, msgspec.json.encode(self._revisions(tuple(caller.models))), ())

    def _explain_fleet(self, call: HttpRequest) -> None:
        outlooks = tuple(self._outlooks(tuple(self._caller(call).models)))
        respond(call.outlet, 200, msgspec.json.encode({"object": "list", "data": outlooks}), ())

    def _one_model(self, call: HttpRequest, name: str) -> None:
        caller = self._caller(call)
        model = by_name(self._core.services.generator.models()).get(name)
        caller.check_model(name if model is None else model.name)
        if model is not None:
            respond(call.outlet, 200, msgspec.json.encode(self._listed(name, model)), ())
            return
        raise TandemError("model_not_found", f"the model {name!r} does not exist", param="model")

    def _one_request(self, call: HttpRequest, request_id: str) -> None:
        caller = self._caller(call)
        standing = self._core.standing(request_id, caller)
        if standing is not None:
            now = {"id": request_id, "status": "running", **msgspec.structs.asdict(standing)}
            respond(call.outlet, 200, msgspec.json.encode(now), ())
            return
        spans = self._core.story(request_id, caller)
        if not spans:
            raise TandemError("not_found", f"the request {request_id!r} is not known here")
        respond(call.outlet, 200, msgspec.json.encode({"id": request_id, "status": "ended", "spans": spans}), ())

    def _probe(self, call: HttpRequest) -> None:
        if call.path == METRICS:
            self._caller(call).check_operator("what all tenants together do")
        page = self.probes.page(call.path)
        assert page is not None, "there is a page for each of these paths"
        length = (b"content-length", b"%d" % len(page.body))
        call.outlet.whole(page.status, (*page.headers, length), page.body)


class _Watch:
    """Connects an outlet, which exists first, with the exchange whose client turns out to be slow."""

    def __init__(self) -> None:
        self.exchange: ApiResponse | None = None

    def slow(self) -> None:
        if self.exchange is not None:
            self.exchange.fail(TandemError("slow_client", "the client does not read its stream fast enough"))


def _numbered(
    outlet: ResponseWriter,
    form: Format,
    headers: tuple[Header, ...],
    include_usage: bool,
    after: tuple[int, ...],
    chars: tuple[int, ...],
) -> ResumableAnswer:
    if isinstance(form, ParsedChatFormat):
        return ResumableParsedStream(outlet, form, headers, include_usage, after, chars)
    return ResumableAnswer(outlet, form, headers, include_usage, after, chars)


def _connection(scope: Scope) -> Connection:
    """The server's own way to this connection; or, to cut it, ending the handler, which makes servers close it."""
    offered: Connection | None = scope.get("extensions", {}).get(CONNECTION_EXTENSION)
    if offered is not None:
        return offered
    task = asyncio.current_task()
    assert task is not None, "an ASGI application runs in a task"

    def cancel() -> None:
        task.cancel("the client does not read")

    return Connection(cancel)

"""Turns what a client asked for into the specification that workers compute by: the one place where fields of a
request become fields of a `RequestSpec`."""

from collections.abc import Sequence

from router.api.auth import Caller
from router.api.chat_templates.render import Renderer
from router.api.openai import parameters
from router.api.openai.schema import ChatRequest, CompletionRequest
from router.api.request_features import RequestFeatures
from router.generation import ServedModel
from tandem.core.kv import SALT_SEPARATOR
from tandem.core.request import RequestSpec


def request_specs(
    request: ChatRequest | CompletionRequest,
    prompts: Sequence[bytes],
    model: ServedModel,
    renderer: Renderer,
    caller: Caller,
    wanted: RequestFeatures,
) -> tuple[RequestSpec, ...]:
    """One specification for each of the request's prompts (packed uint32 token ids); `wanted` is what the request
    wants beyond free text. Raises `invalid_request`, `context_length_exceeded`, `not_allowed`."""
    sampling = parameters.sampling(request, renderer.vocab_size, renderer.defaults)
    priority = caller.check_priority(request.priority)
    return tuple(
        RequestSpec(
            prompt=prompt,
            sampling=sampling,
            stopping=parameters.stopping(
                request, len(prompt) // 4, model.context_tokens, renderer.vocab_size, renderer.defaults
            ),
            tenant_salt=salt_of(caller, request.cache_salt),
            priority=priority,
            kv_bytes_max=caller.quota.kv_bytes_max,
            grammar=wanted.grammar,
            adapter=model.name if model.parent else "",
            special_text=wanted.special_text,
        )
        for prompt in prompts
    )


def salt_of(caller: Caller, cache_salt: str | None) -> str:
    """The salt that keeps cached blocks apart: by tenant always, and within a tenant by the salt that the client asks
    for. A tenant's own salt has no slash, so no choice of a client's reaches another tenant's blocks."""
    return caller.tenant_salt if cache_salt is None else f"{caller.tenant_salt}{SALT_SEPARATOR}{cache_salt}"

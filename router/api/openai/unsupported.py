"""Parameters that other servers know and this one refuses by name, each with the values that ask for nothing.

A client that spells out the default (`echo: false`) is served. A client that relies on the feature learns at once
that it is missing, instead of getting an answer without it.
"""

from types import MappingProxyType
from typing import Any, Final

from tandem.core.errors import TandemError

UNSUPPORTED: Final = MappingProxyType[str, tuple[Any, ...]](
    {
        # More than one candidate per answer.
        "best_of": (1,),
        "use_beam_search": (False,),
        "length_penalty": (1.0,),
        "early_stopping": (False,),
        # Prompt in the answer of a conversation, text after it.
        "echo": (False,),
        "suffix": ("",),
        # Tools, where there is no conversation.
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "web_search_options": (),
        "documents": ([],),
        # Other than text in, text out.
        "audio": (),
        "modalities": (["text"],),
        "prompt_embeds": (),
        "mm_processor_kwargs": ({},),
        # How the model thinks and speaks.
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "prediction": (),
        "moderation": (),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "add_special_tokens": (True,),
        # How sampling and text can be bent further.
        "logits_processors": ([],),
        "allowed_token_ids": (),
        "bad_words": ([],),
        "include_stop_str_in_output": (False,),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "truncate_prompt_tokens": (),
        "return_tokens_as_token_ids": (False,),
        # Answers from a cache of similar requests, as some gateways in front of models offer it.
        "semantic_cache": (False,),
        "semantic_caching": (False,),
        "semantic_cache_threshold": (),
        "semantic_similarity": (False,),
        "similarity_threshold": (),
        "cache_similarity_threshold": (),
        "cache_mode": ("exact", "off"),
    }
)

BY_MEANING: Final = frozenset(name for name in UNSUPPORTED if "semantic" in name or "similarity" in name) | {
    "cache_mode"
}
"""Parameters that ask for the cache of another request that only has the same meaning."""

WHY_NOT_BY_MEANING: Final = (
    "reuse by similarity of meaning is refused: cached KV blocks are those of one exact sequence of tokens, and with "
    "the blocks of a prompt that only means the same the model would answer that other prompt. Exact prefixes are "
    "reused without being asked for"
)


def unsupported(name: str) -> TandemError:
    """The refusal of a parameter, with the reason where there is more to it than that it is not built."""
    why = f": {WHY_NOT_BY_MEANING}" if name in BY_MEANING else ""
    return TandemError("unsupported_parameter", f"the parameter {name!r} is not supported here{why}", param=name)


def asks_for(name: str, value: Any) -> bool:
    """Whether this value of an unsupported parameter would change the answer."""
    return value is not None and not any(type(value) is type(idle) and value == idle for idle in UNSUPPORTED[name])

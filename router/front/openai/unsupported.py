"""Parameters other servers know and this one refuses by name, each with the values that ask for nothing.

A client that spells out the default (`echo: false`) is served; one that relies on the feature learns at once that
it is not there, instead of getting an answer without it.
"""

from types import MappingProxyType
from typing import Any, Final

UNSUPPORTED: Final = MappingProxyType[str, tuple[Any, ...]](
    {
        # More than one candidate per answer.
        "best_of": (1,),
        "use_beam_search": (False,),
        "length_penalty": (1.0,),
        "early_stopping": (False,),
        # Prompt in the answer, text after it.
        "echo": (False,),
        "suffix": ("",),
        "prompt_logprobs": (),
        # Tools.
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "web_search_options": (),
        "documents": ([],),
        # Structured output.
        "response_format": ({"type": "text"},),
        "structured_outputs": (),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
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
        "return_token_ids": (False,),
    }
)


def asks_for(name: str, value: Any) -> bool:
    """Whether this value of an unsupported parameter would change the answer."""
    return value is not None and not any(type(value) is type(idle) and value == idle for idle in UNSUPPORTED[name])

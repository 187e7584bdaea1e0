"""The `Templates` interface, behind which chat templates are rendered.

A model's files determine what a template does, so a router renders none of them on its own loop:
`router.api.chat_templates.supervisor` has a process for it. `InlineTemplates` is for templates that are known.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from router.api.chat_templates.chat_template import ChatTemplate, Message, Tools, samples
from tandem.core.clock import Clock


class Bounds(NamedTuple):
    """Limits on one conversation: seconds until its prompt is there, and characters of the prompt."""

    within_s: float
    characters_max: int


AMPLE: Final = Bounds(60.0, 64 << 20)


class Template(Protocol):
    """A model's template."""

    @property
    def source(self) -> str: ...

    @property
    def samples(self) -> Sequence[str]:
        """The text that the template writes around messages of every role, as far as it accepts them."""
        ...

    async def render(self, messages: Sequence[Message], tools: Tools | None, bounds: Bounds) -> str:
        """The prompt, ending where the assistant's answer begins.

        Raises what `ChatTemplate.render` raises, `invalid_request` also when the template takes too much for it, and
        `deadline_exceeded`.
        """
        ...


class Templates(Protocol):
    """Makes templates."""

    @property
    def clock(self) -> Clock:
        """The clock from which templates take the date."""
        ...

    def load(self, source: str, special_tokens: Mapping[str, str], model: str, origin: str) -> Template:
        """Compile a template and try it. Blocks. Raises `bad_model`, naming `origin`."""
        ...


class InlineTemplate:
    """`Template` that is rendered where it is asked for."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.source = template.source
        self.samples = samples(template)

    async def render(self, messages: Sequence[Message], tools: Tools | None, bounds: Bounds) -> str:
        return self._template.render(messages, tools, bounds.characters_max)


class InlineTemplates:
    """`Templates` without a process of their own. Nothing bounds the time and memory they take."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def load(self, source: str, special_tokens: Mapping[str, str], model: str, origin: str) -> InlineTemplate:
        return InlineTemplate(ChatTemplate(source, special_tokens, self.clock, origin))

"""Chat templates of models with vision, which go through the parts of a message, render texts like any other."""

import pytest

from router.api.chat_templates.chat_template import ChatTemplate
from tandem.process.system import SystemClock

PARTS = (
    "{% for message in messages %}<{{ message['role'] }}>"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}"
    "{% endfor %}"
)
EITHER = (
    "{% for message in messages %}<{{ message['role'] }}>{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{% endfor %}"
)
TEXT = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] | trim }}{% endfor %}"
CONVERSATION = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "look here"}]


@pytest.mark.parametrize("source", [PARTS, EITHER, TEXT])
def test_no_text_is_lost(source: str) -> None:
    template = ChatTemplate(source, {}, SystemClock(), "test")
    assert template.render(CONVERSATION) == "<system>be brief<user>look here"


@pytest.mark.parametrize("source", ["{{ messages | tojson }}", "{{ messages[1].content }}", "always this"])
def test_a_template_that_takes_texts_gets_texts(source: str) -> None:
    template = ChatTemplate(source, {}, SystemClock(), "test")
    assert '"type"' not in template.render(CONVERSATION)
    assert "'type'" not in template.render(CONVERSATION)

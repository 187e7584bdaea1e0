"""Images of chat requests: what their files say of themselves, and what is refused before one is decoded."""

import base64
import io
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from router.api.chat_templates.chat_template import ChatTemplate
from router.api.openai import images as module
from router.api.openai import parameters
from router.api.openai.images import images
from router.api.openai.schema import ChatRequest
from router.dispatch.resume_token import images_digest
from router.generation import ServedModel
from tandem.core.errors import TandemError
from tandem.core.images import IMAGES_MAX, PIXELS_MAX, Size, size_of
from tandem.process.system import SystemClock

SEEING = ServedModel("seer", 1024, (1,), features=("grammar", "images"))
PARTS = (
    "{% for message in messages %}<{{ message['role'] }}>{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}[image]{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
EITHER = (
    "{% for message in messages %}<{{ message['role'] }}>{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}[image]{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)
TEXT = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")


def file(kind: str, width: int, height: int, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(out, kind, **options)
    return out.getvalue()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def request(*urls: object, role: str = "user") -> ChatRequest:
    parts = [{"type": "image_url", "image_url": {"url": each, "detail": "auto"}} for each in urls]
    content = [{"type": "text", "text": "look "}, *parts, {"type": "text", "text": "here"}]
    return msgspec.convert({"model": "seer", "messages": [{"role": role, "content": content}]}, ChatRequest)


def refused(*urls: object, model: ServedModel = SEEING) -> TandemError:
    with pytest.raises(TandemError) as caught:
        images(request(*urls), model)
    return caught.value


@given(
    kind=st.sampled_from(_FORMATS),
    width=st.integers(1, 300),
    height=st.integers(1, 300),
    options=st.sampled_from([{}, {"progressive": True}, {"lossless": True}, {"optimize": True}]),
)
def test_the_size_is_read_from_every_format(kind: str, width: int, height: int, options: dict[str, bool]) -> None:
    data = file(kind, width, height, **options)
    assert size_of(data) == Size(width, height)
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.size == size_of(data)


def test_the_size_of_a_webp_with_an_alpha_channel_is_read() -> None:
    out = io.BytesIO()
    Image.new("RGBA", (70, 20), (1, 2, 3, 4)).save(out, "WEBP")
    assert size_of(out.getvalue()) == Size(70, 20)


@given(
    start=st.sampled_from([b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8 "]),
    data=st.binary(),
)
def test_any_bytes_have_a_size_or_none(start: bytes, data: bytes) -> None:
    found = size_of(start + data)
    assert found is None or found.pixels > 0


@given(kind=st.sampled_from(_FORMATS), keep=st.integers(0, 200))
def test_a_file_that_is_cut_off_has_its_own_size_or_none(kind: str, keep: int) -> None:
    assert size_of(file(kind, 33, 44)[:keep]) in (None, Size(33, 44))


def test_of_several_frames_of_a_jpeg_the_largest_counts() -> None:
    data = file("JPEG", 8, 8)
    frame = b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 60_000, 50_000) + b"\x03" + bytes(9)
    assert size_of(data[:2] + frame + data[2:]) == Size(50_000, 60_000)
    assert size_of(data[:20] + frame[:7]) is None


@given(st.lists(st.sampled_from([file("PNG", 2, 3), file("GIF", 5, 4)]), max_size=4))
def test_files_come_as_they_were_sent(files: list[bytes]) -> None:
    assert images(request(*map(url, files)), SEEING) == tuple(files)


def test_a_request_without_images_asks_nothing_of_its_model() -> None:
    assert images(request(), msgspec.structs.replace(SEEING, features=())) == ()


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1/a.png", "https://example.com/a.png", "file:///etc/passwd", "ftp://a", "", "/a.png", "data:,x",
     "data:text/plain;base64,eA==", "HTTP://a", " data:image/png;base64,eA=="],
)  # fmt: skip
def test_nothing_is_fetched(address: str) -> None:
    error = refused(address)
    assert (error.code, error.param) == ("invalid_request", "messages[0].content[1].image_url")
    assert "nothing is fetched" in error.message


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("data:image/png,abc", "expected data:image/"),
        ("data:image/png;base64", "expected data:image/"),
        ("data:image/png;base64,%%%", "not base64"),
        ("data:image/png;base64,eA==", "unreadable"),
        (url(b"\x89PNG\r\n\x1a\n" + bytes(40)), "unreadable"),
    ],
)
def test_what_is_no_image_is_named(address: str, problem: str) -> None:
    error = refused(url(file("PNG", 2, 2)), address)
    assert (error.code, error.param) == ("invalid_request", "messages[0].content[2].image_url")
    assert problem in error.message


def test_a_few_bytes_that_claim_to_be_a_huge_picture_go_no_further() -> None:
    data = bytearray(file("PNG", 1, 1))
    data[16:24] = struct.pack(">II", 1 << 20, 1 << 10)
    error = refused(url(bytes(data)))
    assert (error.code, error.param) == ("invalid_request", "messages[0].content[1].image_url")
    assert f"{PIXELS_MAX:,} are the most" in error.message


def test_pixels_of_all_images_count_together() -> None:
    data = bytearray(file("PNG", 1, 1))
    data[16:24] = struct.pack(">II", PIXELS_MAX // 2 // 1024, 1024)
    assert len(images(request(*[url(bytes(data))] * 2), SEEING)) == 2
    assert refused(*[url(bytes(data))] * 3).param == "messages[0].content[3].image_url"


def test_too_many_are_refused_before_any_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_file", None)
    error = refused(*["data:image/png;base64,"] * (IMAGES_MAX + 1))
    assert (error.code, error.param) == ("invalid_request", f"messages[0].content[{IMAGES_MAX + 1}].image_url")


def test_a_model_that_takes_none_says_what_would() -> None:
    error = refused(url(file("PNG", 2, 2)), model=msgspec.structs.replace(SEEING, features=("grammar",)))
    assert (error.code, error.param) == ("unsupported_parameter", "messages[0].content[1].image_url")
    assert "pool of role unified" in error.message


@pytest.mark.parametrize("role", ["assistant", "system", "tool"])
def test_only_users_show_images(role: str) -> None:
    with pytest.raises(TandemError) as caught:
        parameters.messages(request(url(file("PNG", 2, 2)), role=role))
    assert caught.value.param == "messages[0].content[1].image_url"


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {}, SystemClock(), "test")


@pytest.mark.parametrize("source", [PARTS, EITHER])
def test_images_stand_where_the_template_puts_them(source: str) -> None:
    turns = [{"role": "system", "content": "be brief"}, *parameters.messages(request(url(file("PNG", 2, 2))))]
    assert template(source).render(turns) == "<system>be brief<user>look [image]here"


@pytest.mark.parametrize("source", [PARTS, EITHER, TEXT])
def test_texts_are_rendered_whether_a_template_takes_parts_or_not(source: str) -> None:
    turns = parameters.messages(request())
    assert template(source).render([*turns, *turns]) == "<user>look here<user>look here"


@pytest.mark.parametrize("source", [TEXT, "{{ messages | tojson }}", "{{ messages[0].content | trim }}"])
def test_a_template_without_a_place_for_images_refuses_them(source: str) -> None:
    with pytest.raises(TandemError) as caught:
        template(source).render(parameters.messages(request(url(file("PNG", 2, 2)))))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "messages")


@given(st.lists(st.binary(max_size=4), max_size=3), st.lists(st.binary(max_size=4), max_size=3))
def test_other_images_have_another_digest(first: list[bytes], second: list[bytes]) -> None:
    assert (images_digest(tuple(first)) == images_digest(tuple(second))) == (first == second)


@pytest.mark.parametrize("filler", [b"\xff", b"\xff\xd0", b"\xff\xe1\x00\x02"])
def test_a_jpeg_of_nothing_but_markers_is_not_looked_through(filler: bytes) -> None:
    whole = file("JPEG", 40, 30)
    assert size_of(whole[:2] + filler * 100 + whole[2:]) == Size(40, 30)
    assert size_of(whole[:2] + filler * 2000 + whole[2:]) is None

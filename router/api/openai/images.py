"""Images among the parts of a message: data URLs become bytes, bounded before they do. Nothing is fetched. Pure."""

import base64
import binascii
from collections.abc import Iterator
from typing import Final

from router.api.openai.schema import ChatMessage, ChatRequest, ContentPart
from router.generation import ServedModel
from tandem.core.errors import TandemError
from tandem.core.images import IMAGES_MAX, PIXELS_MAX, Size, size_of

FEATURE: Final = "images"
"""Feature of engines that take images (`EngineInfo.features`)."""
_URLS: Final = ("data:image/",)
_SCHEME_CHARACTERS: Final = 16
_BASE64: Final = ";base64"


def images(request: ChatRequest, model: ServedModel) -> tuple[bytes, ...]:
    """The files of all images of a conversation, in its order. Raises `unsupported_parameter`, `invalid_request`."""
    parts = list(_parts(request))
    if not parts:
        return ()
    if FEATURE not in model.features:
        raise TandemError(
            "unsupported_parameter",
            f"{parts[0][0]}: no worker of {model.name} takes images: that needs a model that reads them, engine vllm "
            "with images_per_prompt above 0, and a pool of role unified",
            param=parts[0][0],
        )
    if len(parts) > IMAGES_MAX:
        where = parts[IMAGES_MAX][0]
        raise _invalid(where, f"{len(parts)} images are more than the {IMAGES_MAX} that a request may have")
    files, pixels = [], 0
    for where, part in parts:
        data, size = _file(part, where)
        pixels += size.pixels
        if pixels > PIXELS_MAX:
            found = f"with its {size.width} x {size.height} the request's images have {pixels:,} pixels"
            raise _invalid(where, f"{found}, and {PIXELS_MAX:,} are the most")
        files.append(data)
    return tuple(files)


def _parts(request: ChatRequest) -> Iterator[tuple[str, ContentPart]]:
    """Every image with its place."""
    for number, message in enumerate(request.messages):
        for at, part in enumerate(parts_of(message)):
            if part.type == "image_url":
                yield f"messages[{number}].content[{at}].image_url", part


def parts_of(message: ChatMessage) -> list[ContentPart]:
    """The pieces of a message; none of one that is text."""
    return message.content if isinstance(message.content, list) else []


def _file(part: ContentPart, where: str) -> tuple[bytes, Size]:
    if part.image_url is None:
        raise _invalid(where, "is missing")
    url = part.image_url.url
    head, comma, body = url.partition(",")
    if not url[:_SCHEME_CHARACTERS].lower().startswith(_URLS):
        shown = url[:_SCHEME_CHARACTERS].partition(":")[0]
        raise _invalid(where, f"nothing is fetched here: expected a data: URL of an image, not {shown!r}…")
    if not comma or not head.lower().endswith(_BASE64):
        raise _invalid(where, "expected data:image/…;base64,…")
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _invalid(where, f"not base64: {error}") from error
    size = size_of(data)
    if size is None:
        raise _invalid(where, "unreadable: expected a PNG, JPEG, GIF or WebP file")
    return data, size


def _invalid(where: str, problem: str) -> TandemError:
    return TandemError("invalid_request", f"{where}: {problem}", param=where)

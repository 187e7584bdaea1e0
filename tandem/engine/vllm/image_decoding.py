"""Decoding of image files to images in memory. Runs in a thread of the worker; vLLM's own reader does the reading."""

from io import BytesIO
from typing import Any, Final

from tandem.core.errors import TandemError
from tandem.core.images import PIXELS_MAX
from tandem.engine.vllm.internals import ImageMediaIO

FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP")


def decode_images(files: tuple[bytes, ...]) -> list[Any]:
    """Decode image files to the form that vLLM's processors take. The size of an image is taken from its reader,
    before anything is decoded. Raises `invalid_request` naming the image by its number, from 1."""
    # Imported on use: it comes with vLLM.
    from PIL import Image

    found, pixels = list[Any](), 0
    for number, file in enumerate(files, 1):
        try:
            with Image.open(BytesIO(file), formats=FORMATS) as image:
                pixels += image.width * image.height
            if pixels <= PIXELS_MAX:
                found.append(ImageMediaIO().load_bytes(file))
        # Readers of damaged files raise whatever they come upon.
        except Exception as error:
            raise _bad(number, f"cannot be read: {error}") from error
        if pixels > PIXELS_MAX:
            raise _bad(number, f"brings the pixels of the request to {pixels:,}, and {PIXELS_MAX:,} are the most")
    return found


def _bad(number: int, problem: str) -> TandemError:
    return TandemError("invalid_request", f"image {number} of the request {problem}", param="messages")

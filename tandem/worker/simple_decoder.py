"""The `Decoder` of models without files: `tandem.core.simple_tokenizer` as an object."""

from typing import Self

from tandem.core import simple_tokenizer


class SimpleDecoder:
    """Text of the simulated engine's ids."""

    decode = staticmethod(simple_tokenizer.decode)
    alone = staticmethod(simple_tokenizer.alone)

    def with_special(self) -> Self:
        """This decoder itself: its only special token is the end, which is not text."""
        return self

"""`python -m tools.models.damaging MODULE ...` is `python -m MODULE ...` with a worker that damages KV on demand.

While the file named by `TANDEM_MODELS_DAMAGE` is there, the block of every load that it names is zeroed in vLLM's
cache after it has been verified and copied. So answers must change, or the blocks that are handed over mean nothing.
vLLM's processes are spawned, and import this module again as their main one.
"""

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

VARIABLE: Final = "TANDEM_MODELS_DAMAGE"


def _damaged() -> int | None:
    """The number of the block within its prompt, while one is to be damaged."""
    place = os.environ.get(VARIABLE)
    try:
        return int(Path(place).read_text()) if place else None
    except (FileNotFoundError, ValueError):
        return None


def _install() -> None:
    from tandem.engine.vllm.connector.host_copies import Copied, HostCopies
    from tandem.engine.vllm.connector.orders import PageTarget

    load = HostCopies.load

    def damaging_load(copies: HostCopies, targets: Sequence[PageTarget]) -> Copied:
        copied = load(copies, targets)
        damaged = _damaged()
        copies.blank([target.block for target in targets if target.index == damaged])
        return copied

    HostCopies.load = damaging_load  # type: ignore[method-assign, assignment]


if __name__ in ("__main__", "__mp_main__"):
    _install()
if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    # This module stays the main one: it is what vLLM's processes are to import.
    runpy.run_module(sys.argv[0], run_name="__main__")

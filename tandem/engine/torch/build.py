"""The way in: settings to a runner."""

from typing import TYPE_CHECKING

from tandem.core.errors import TandemError
from tandem.engine.torch.process import ProcessRunner
from tandem.engine.torch.settings import TorchSettings

if TYPE_CHECKING:
    from tandem.engine.torch.thread import ThreadRunner


def build_runner(settings: TorchSettings) -> "ThreadRunner | ProcessRunner":
    """A runner that has not loaded yet. Raises `bad_setting` for an unknown mode."""
    if settings.mode == "thread":
        # Only this mode needs torch in this process: a second of start-up and 200 MB.
        from tandem.engine.torch.thread import ThreadRunner

        return ThreadRunner(settings)
    if settings.mode == "process":
        return ProcessRunner(settings)
    raise TandemError("bad_setting", f"mode = {settings.mode!r}: expected thread or process", param="mode")

"""Works whose images are yet to take their places in their prompts. No vLLM, no I/O."""

from tandem.engine.protocol import EngineRequest
from tandem.engine.vllm.tracked_request import TrackedRequest


class ImageQueue:
    """The images of one work are read at a time, for decoded images are large: of the most urgent one, and of the
    first to come among equals. What has ended is forgotten at once, with the files of its images."""

    def __init__(self) -> None:
        self._waiting: dict[int, TrackedRequest] = {}
        self.reading = False
        """Whether the images of a request are being read; the request may have ended meanwhile."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, run: TrackedRequest) -> None:
        """A work waits for its images to be read."""
        self._waiting[run.work_id] = run

    def discard(self, work_id: int) -> None:
        """A work is over; whether it waited here does not matter."""
        self._waiting.pop(work_id, None)

    def take(self, now: float) -> EngineRequest | None:
        """The work whose images are to be read from now on. None when no work waits: then no images are being read
        any more."""
        run = min(self._waiting.values(), key=lambda each: -each.work.priority, default=None)
        self.reading = run is not None
        if run is None:
            return None
        del self._waiting[run.work_id]
        run.reads(now)
        return run.work

    def waits_behind(self, run: TrackedRequest) -> bool:
        """Whether a request waits for images that are read before its own; that reading has a bound."""
        return self.reading and run.work_id in self._waiting

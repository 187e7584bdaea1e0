"""The attempts of one request: how many, how many without a token, and what a failure means for the next. Pure."""

from router.dispatch import errors as endings
from router.dispatch.retry_budget import backoff_s
from router.settings import RetrySettings
from tandem.core.errors import TandemError


class RetryState:
    """Counts attempts; one request changes it in place."""

    def __init__(self, settings: RetrySettings, excluded: tuple[tuple[str, int], ...] = ()) -> None:
        self._settings = settings
        self._fruitless = 0
        self.attempts = 0
        self.prompt_moves = 0
        self._moves = 0
        """Attempts given up because their worker leaves; they are no failures and count against no bound."""
        self.excluded = excluded
        """Incarnations (worker id, epoch) that are not wanted from the start, or failed the request already."""

    def begin(self) -> int:
        """A new attempt; gives its number, counted from 1."""
        self.attempts += 1
        return self.attempts

    def exclude(self, worker_id: str, epoch: int) -> None:
        if (worker_id, epoch) not in self.excluded:
            self.excluded = (*self.excluded, (worker_id, epoch))

    def moved(self) -> None:
        """Note that the current attempt is given up for one elsewhere."""
        self._moves += 1

    def prompt_moved(self) -> None:
        """Note that the current attempt is given up for one elsewhere, because prefill was starved and had computed
        nothing."""
        self.prompt_moves += 1
        self.moved()

    def ended(self, code: str, message: str, *, fruitful: bool) -> TandemError | None:
        """Note that an attempt failed; `fruitful` says whether it had delivered a token. Returns the error to end
        with when there were enough attempts. A worker that leaves does not count as a failure."""
        if code == "draining":
            self.moved()
            return None
        self._fruitless = 0 if fruitful else self._fruitless + 1
        charged = self.attempts - self._moves
        if self._fruitless >= self._settings.fruitless_attempts_max or charged >= self._settings.attempts_max:
            return endings.gave_up(code, self.attempts, message)
        return None

    def backoff_s(self) -> float:
        """Seconds to wait before the next attempt."""
        return backoff_s(self._settings, self._fruitless)

    def check(self) -> None:
        """Raise `AssertionError` when the bounds were passed."""
        charged = self.attempts - self._moves
        assert charged <= self._settings.attempts_max, f"{charged} attempts, and {self._moves} moves"

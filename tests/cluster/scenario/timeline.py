"""What a scenario looked like over time: a state that is asked for again and again, kept where it changes."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.cluster.lab.admin import Refused
from tests.cluster.lab.http import Unreachable

State = Mapping[str, str]
_LOOK_S = 0.5
_END_S = 60.0


@dataclass
class Timeline:
    """`look` is asked from enter to exit. `moments` are seconds since then with the state from there on."""

    look: Callable[[], State]
    moments: list[tuple[float, State]] = field(default_factory=list)

    def __enter__(self) -> "Timeline":
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join(_END_S)
        assert not self._thread.is_alive(), "the timeline still looks"

    def __str__(self) -> str:
        """One line per moment, with what has changed."""
        lines, before = [], dict[str, str]()
        for at, state in self.moments:
            changed = [f"{name} {value}" for name, value in state.items() if before.get(name) != value]
            lines.append(f"{at:6.1f} s  " + ", ".join(changed))
            before = dict(state)
        return "\n".join(lines)

    @property
    def now(self) -> float:
        """Seconds since enter."""
        return time.monotonic() - self._began

    def first(self, holds: Callable[[State], bool], after: float = 0.0) -> float | None:
        """When a state first was like that; None if it never was."""
        return next((at for at, state in self.moments if at >= after and holds(state)), None)

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                state = self.look()
            except (Unreachable, Refused):
                continue
            if not self.moments or state != self.moments[-1][1]:
                self.moments.append((round(self.now, 1), state))

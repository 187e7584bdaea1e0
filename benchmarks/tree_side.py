"""A process that measures with the tree of one revision: a line that asks, a line that answers."""

import os
import selectors
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

ANSWER_S: Final = 600.0
"""Far longer than a measurement takes on a busy machine."""
END_S: Final = 30.0
_KILLED_S: Final = 60.0


class TreeSide:
    """Runs `script` with the modules of `tree`."""

    def __init__(self, script: Path, tree: Path) -> None:
        name = str(script.resolve())
        # The tree comes before the folder of the script, which Python would look into first.
        start = f"import sys, runpy; sys.argv = [{name!r}]; runpy.run_path({name!r}, run_name='__main__')"
        environment, pipe = {**os.environ, "PYTHONPATH": str(tree)}, subprocess.PIPE
        command = [sys.executable, "-P", "-c", start]
        self._tree = tree
        self._process = subprocess.Popen(command, cwd=tree, env=environment, stdin=pipe, stdout=pipe, text=True)

    def ask(self, line: str) -> str:
        """The line that answers `line`. Raises `RuntimeError` when the process ends instead, or is silent."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # It has ended: reading says so.
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(ANSWER_S):
                raise RuntimeError(f"the side of {self._tree} did not answer {line!r} within {ANSWER_S:.0f} s")
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the side of {self._tree} ended instead of answering {line!r}; see what it printed")
        return answer

    def end(self) -> None:
        """It ends with its input, and the processes that it has started with it; what does not is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # What it was asked last it did not take any more.
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_KILLED_S)
        self._process.stdout.close()

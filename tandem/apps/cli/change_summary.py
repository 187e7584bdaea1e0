"""A change of a running platform in words. Pure."""

from tandem.apps.cli.operations import Change, DrainedWorker


def sentences(change: Change) -> list[str]:
    """The result of a change in sentences, for people."""
    lines = [f"{name} was started" for name in change.started]
    lines += [_left(left) for left in change.left]
    if change.moved and change.left:
        lines.append(f"{streams(change.moved)} went on on another worker")
    return [*lines, f"running now: {', '.join(change.workers)}"]


def _left(left: DrainedWorker) -> str:
    where = "and was removed" if left.removed else "and starts again"
    how = f"{left.name} left after {left.took_s:.1f} s {where}"
    if left.finished is None or left.taken is None:
        return f"{how}; it could not say what became of its streams"
    fates = (
        (left.finished, "finished there"),
        (left.taken, "given back to the router, to move or because the client left"),
        (left.cut or 0, "cut off at the bound, to be resumed elsewhere"),
    )
    told = [f"{count} {fate}" for count, fate in fates if count]
    return f"{how}; {', '.join(told)}" if told else f"{how}; no stream was running there"


def streams(count: int) -> str:
    """A number of streams."""
    return "1 stream" if count == 1 else f"{count} streams"

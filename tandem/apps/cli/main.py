"""The `tandem` command: finds the subcommand and turns operating errors into one sentence and a status.

Subcommands are imported when asked for, so that `tandem explain` does not wait for what `tandem up` needs.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from tandem import __version__
from tandem.core.errors import TandemError

USAGE_ERROR: Final = 2


@dataclass(frozen=True)
class Command:
    """`module` has `main(arguments) -> int`."""

    module: str
    help: str


COMMANDS: Final = {
    "up": Command("tandem.apps.cli.up", "run a router and its workers on this machine"),
    "demo": Command("tandem.apps.cli.demo", "one chat request through prefill, transfer and decode, explained"),
    "scale": Command("tandem.apps.cli.scale", "other numbers of workers for a running platform; no stream breaks"),
    "drain": Command("tandem.apps.cli.drain", "let one worker leave a running platform; no stream breaks"),
    "bench": Command(
        "tandem.apps.cli.bench", "replay a workload against an OpenAI URL and report latencies and goodput"
    ),
    "verify": Command("tandem.apps.cli.verify.command", "whether two endpoints or models give the same answers"),
    "explain": Command("tandem.apps.cli.explain", "where a request went, why, and where its time and bytes went"),
    "drill": Command(
        "tandem.apps.chaos.drill.command", "strike a running platform under load and judge every answer"
    ),
    "doctor": Command(
        "tandem.apps.cli.doctor.command", "what a node or pod lacks, or whether a ModelService would work"
    ),
    "fetch": Command("tandem.apps.cli.fetch", "bring a model's weights to this node, once for all who need them"),
    "kv-store": Command("kv_store.__main__", "a process that keeps KV blocks for workers that come and go"),
    "sim": Command("tandem.apps.simulation.command", "simulated clusters with faults, on virtual time"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; gives the exit status: 0 done, 1 failed, 2 wrong usage, 128 + N ended by
    signal N (130 for SIGINT)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--version"]:
        print(f"tandem {__version__}")
        return 0
    if not given or given[0] in ("-h", "--help"):
        print(overview())
        return 0 if given else USAGE_ERROR
    command = COMMANDS.get(given[0])
    if command is None:
        print(f"tandem: no command {given[0]!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return USAGE_ERROR
    try:
        status: int = import_module(command.module).main(given[1:])
    except TandemError as error:
        print(f"tandem {given[0]}: {error.message}", file=sys.stderr)
        return USAGE_ERROR if error.code == "bad_setting" else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    return status


def overview() -> str:
    """The text that `tandem --help` prints."""
    lines = ["usage: tandem COMMAND [options]", ""]
    lines += [f"  {name:8} {command.help}" for name, command in COMMANDS.items()]
    return "\n".join([*lines, "", "`tandem COMMAND --help` says more."])

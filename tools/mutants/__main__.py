"""`python -m tools.mutants`: which small faults tests notice."""

import argparse
import sys
import time
from typing import Final

from tools.mutants import hand

_LEAST: Final = 0.9
"""Of a sample so much must be noticed."""
_LEAST_OF_CHANGED: Final = 0.6
"""Of a few faults in changed lines that unit tests run: some may be harmless. It has to be sure that fewer are
noticed, as the sample is another in every change; lines that only larger tests run are told, not judged."""
_TEST_FILES_MAX: Final = 12
"""Of one round over changed lines, so that it is over in minutes."""
_REACH_SHARE: Final = 0.4
"""Of its time so much goes to finding out which tests run which lines."""
_TESTS_S: Final = 5.0
"""Processor time of the tests that judge one of them."""


def main() -> int:
    """Judge what the command line names; 1 when too few faults were noticed."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_hand = kinds.add_parser("hand", help="the faults of tests/mutants/hand.toml; all must be noticed")
    of_hand.add_argument("--only", default="", help="those whose file or harm has this text")
    of_sample = kinds.add_parser("sample", help="a sample of each group of tests/mutants/groups.toml; 90 %% of each")
    of_sample.add_argument("--group", action="append", default=[], help="this one; may be repeated (default: all)")
    of_changed = kinds.add_parser("changed", help="a sample of the lines changed since a revision; 60 %%")
    of_changed.add_argument("--since", default="HEAD~1", help="the revision (default: %(default)s)")
    of_changed.add_argument(
        "--seconds", type=float, default=100.0, help="begin no fault later (default: %(default)s)"
    )
    for each, count in ((of_sample, 60), (of_changed, 40)):
        each.add_argument("--count", type=int, default=count, help="faults (default: %(default)s)")
        each.add_argument("--seed", default="1", help="draws the sample (default: %(default)s)")
        each.add_argument("--jobs", type=int, default=2, help="copies at work (default: %(default)s)")
    asked = parser.parse_args()
    if asked.kind == "hand":
        wanted = [each for each in hand.faults() if asked.only in f"{each.file} {each.harm}"]
        return int(hand.judge(wanted) > 0)
    return _sample(asked) if asked.kind == "sample" else _changed(asked)


def _sample(asked: argparse.Namespace) -> int:
    # What generates faults is for this alone: the hand set needs none of it.
    from tools.mutants import sample

    least, began = 1.0, time.monotonic()
    for group in sample.groups():
        if asked.group and group.name not in asked.group:
            continue
        faults = sample.sampled(group.paths(), asked.count, f"{asked.seed}/{group.name}")
        judged = sample.judge(faults, group.test_paths(), asked.jobs)
        least = min(least, sample.tell(group.name, judged).share)
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    return int(least < _LEAST)


def _changed(asked: argparse.Namespace) -> int:
    from tools.mutants import sample

    until = time.monotonic() + asked.seconds
    lines = sample.changed_lines(asked.since)
    drawn = sample.sampled(sorted(lines), asked.count, asked.seed, lines)
    tests: dict[str, None] = {}
    faults = []
    for fault in drawn:
        of_file = sample.tests_of(fault.file)
        if of_file and len({*tests, *of_file}) <= _TEST_FILES_MAX:
            tests.update(dict.fromkeys(of_file))
            faults.append(fault)
    if not faults:
        print("no line has changed that a fault could stand in")
        return 0
    judged = sample.judge(faults, list(tests), asked.jobs, until, _REACH_SHARE * asked.seconds, _TESTS_S)
    return int(sample.tell(f"since {asked.since}", judged).run_share_at_most < _LEAST_OF_CHANGED)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tools.mutants`: which faults tests notice."""

import argparse
import sys

from tools.mutants import hand


def main() -> int:
    """Judge what the command line names; 1 when too few faults were noticed."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_hand = kinds.add_parser("hand", help="the faults of tests/mutants/hand.toml; all must be noticed")
    of_hand.add_argument("--only", default="", help="those whose file or harm has this text")
    asked = parser.parse_args()
    wanted = [each for each in hand.faults() if asked.only in f"{each.file} {each.harm}"]
    return int(hand.judge(wanted) > 0)


if __name__ == "__main__":
    sys.exit(main())

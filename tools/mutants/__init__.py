"""Mutation testing: small faults are planted in a copy of the code, and tests must notice them.

`python -m tools.mutants hand` judges the faults of `tests/mutants/hand.toml`, `sample` a seeded sample of every group
of `tests/mutants/groups.toml`, `changed` the lines changed since a revision. Faults come from mutmut's operators and
from a few of ours; each is judged in a fork of a process that has imported everything but Tandem.
"""

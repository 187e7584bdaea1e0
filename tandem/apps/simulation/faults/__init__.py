"""Seeded faults, one file for each kind: the fault as a value, `draw` from a seed, `apply` to a world.

`drawing` chooses the faults of a seed, `injector` carries them out. A new kind is a file here and a count
in `FaultProfile`, drawn with a fork of its own: a line in `drawing.DRAWS` would change what every seed is.
"""

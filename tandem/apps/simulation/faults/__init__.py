"""Seeded faults, a file for each kind: the fault as a value, `draw` from a seed, `apply` to a world.

`drawing` says which faults a seed has, `injector` carries them out. A new kind is a file here and a line in
`drawing.DRAWS`.
"""

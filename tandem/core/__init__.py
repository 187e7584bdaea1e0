"""The vocabulary every service shares. Imports nothing of ours, does no I/O, reads no clock."""

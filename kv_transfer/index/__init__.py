"""Indexes of which worker or store has which KV blocks: in memory, in numpy arrays, in Redis. `protocol` is their
common interface."""

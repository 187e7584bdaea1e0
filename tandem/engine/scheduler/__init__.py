"""Decides what an engine computes next, for which requests and in which KV blocks, without I/O or clock."""

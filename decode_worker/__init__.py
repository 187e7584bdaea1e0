"""Pulls and verifies KV, then generates; also the unified role, which prefills itself."""

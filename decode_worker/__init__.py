"""Pulls and verifies KV, then generates; also the roles unified and auto, which prefill themselves."""

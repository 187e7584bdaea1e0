"""Runs prompts and exports their KV under leases."""

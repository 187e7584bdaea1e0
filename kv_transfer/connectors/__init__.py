"""Connectors: how other engines hand their KV blocks to, and take them from, this project."""

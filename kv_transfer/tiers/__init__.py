"""Copies of KV blocks below the engine's own pool: DRAM, NVMe."""

"""Keeps KV blocks in DRAM and on NVMe for workers that come and go, and computes nothing."""

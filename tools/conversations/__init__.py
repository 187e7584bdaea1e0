"""Conversations that return, on real processes with every tier, under forced evictions and restarts."""

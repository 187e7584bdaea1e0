"""Deterministic simulation of the real services on virtual time."""

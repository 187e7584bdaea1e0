"""Drills: striking a running platform under load, at a chosen stage of a request, and judging every answer."""

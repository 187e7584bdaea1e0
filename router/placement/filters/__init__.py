"""Filters that decide which workers may take a request at all, each with a sentence that gives the reason."""

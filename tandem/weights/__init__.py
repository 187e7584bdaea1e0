"""Weights: where they come from, what they must look like, and a cache per node that fetches each file once."""

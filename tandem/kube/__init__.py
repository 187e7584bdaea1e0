"""The parts of an operator besides its decisions: the API server as a seam, a mirror of it, a queue, a lease and
events."""

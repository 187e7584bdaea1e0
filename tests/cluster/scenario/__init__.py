"""What the scenarios need: the platform installed by its charts, services, and clients that load it."""

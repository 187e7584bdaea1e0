"""The simulated engine: time from a step formula, tokens from the bytes in the slots that are attended."""

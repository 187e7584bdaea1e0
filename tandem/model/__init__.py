"""A model's files: where they lie, what its configuration says, how its checkpoint is read. Without an engine."""

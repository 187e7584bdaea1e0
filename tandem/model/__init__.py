"""A model's files: where they are, what the configuration says, how the checkpoint is read. Independent of any
engine."""

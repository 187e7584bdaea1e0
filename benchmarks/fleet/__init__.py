"""A fleet simulated step by step: the bench on which routing policies compete."""

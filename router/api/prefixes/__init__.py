"""Pinned prefixes: prompts that a client asks to be kept in the fleet's memory."""

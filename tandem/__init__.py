"""Tandem: LLM serving with prefill and decode on separate, separately scaled workers."""

__version__ = "0.1.0"

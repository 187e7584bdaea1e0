"""Chat templates: checked, then rendered in a process of their own that may be killed."""

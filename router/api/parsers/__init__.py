"""Incremental parsers of the formats that models write: they split text into content, reasoning and tool calls.

A parser is fed text in pieces and reports at once what each character makes certain. What it has reported after a
number of characters is the same however these were cut into pieces, so a stream may be resumed, moved to another
worker or taken over by another router anywhere. Text that is not in the format is content, every character of it.
"""

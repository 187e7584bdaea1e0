"""What a model writes, as content, reasoning and tool calls: incremental parsers of the formats models know.

A parser is fed text in pieces and says at once what each character makes certain. What it has said after so many
characters is the same however these were cut into pieces, so a stream may be resumed, moved to another worker or
taken over by another router anywhere. Text that is not in the format is content, every character of it.
"""

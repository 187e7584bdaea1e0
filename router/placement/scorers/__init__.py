"""The scorers, which price a choice part by part, in milliseconds."""

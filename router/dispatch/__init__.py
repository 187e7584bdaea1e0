"""From an accepted request to its last token: admission, attempts on workers, positions, deadlines, retries."""

"""Takes a request from acceptance to its last token: admission, attempts on workers, positions, deadlines,
retries."""

"""From text to token ids: threads, and what is known of text that was tokenized before."""

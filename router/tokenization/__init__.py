"""Turns text into token ids: runs tokenizers in threads and remembers text that was tokenized before."""

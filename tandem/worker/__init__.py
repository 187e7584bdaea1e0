"""The shell both worker services share: links, commands in, step outputs out, text."""

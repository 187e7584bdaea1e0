"""Who may take a request at all, each filter with its sentence."""

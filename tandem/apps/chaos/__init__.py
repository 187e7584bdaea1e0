"""Real processes under load, struck on purpose, and every answer judged."""

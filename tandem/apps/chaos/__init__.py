"""Real processes under load, struck on purpose, every answer judged: drills, and what other long runs share."""

"""OpenAI-style REST: routes, request bodies, answers as JSON or server-sent events."""

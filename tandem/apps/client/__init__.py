"""The client side of a platform: a lean HTTP client, and streamed answers as typed pieces."""

"""The process shell: start, ready, drain, stop; settings, links, telemetry, the real clock and entropy."""

"""The process shell: start, ready, drain, stop; settings, logs, metrics, traces, TLS, the real clock and entropy."""

"""Transfer of KV bytes between processes over TCP, TLS, shared memory or nixl. `protocol` defines the interface."""

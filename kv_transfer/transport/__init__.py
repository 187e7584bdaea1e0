"""How KV bytes get from one process to another: TCP, TLS, shared memory, nixl. `protocol` is the seam."""

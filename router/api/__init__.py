"""The public interfaces: REST and gRPC, from bytes to a validated, tokenized request and back to events."""

"""The front door: OpenAI REST and gRPC, admission, placement, dispatch."""

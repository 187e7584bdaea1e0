"""vLLM as an engine: `AsyncLLM` behind the `Engine` seam, and the stage through which its KV is exchanged."""

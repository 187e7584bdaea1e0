"""vLLM's KV connector of Tandem: copies between vLLM's cache and the stage, in vLLM's own processes."""

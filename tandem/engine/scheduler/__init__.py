"""What an engine computes next, for whom, in which KV blocks: decisions without I/O or clock."""

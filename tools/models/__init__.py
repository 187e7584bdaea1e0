"""Which models Tandem serves as vLLM does: random-weight checkpoints of many architectures, asked both ways."""

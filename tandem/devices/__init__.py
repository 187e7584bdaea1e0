"""Finds which GPUs, CPUs and network devices a machine has, and which of them each worker gets."""

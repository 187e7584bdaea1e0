"""The Kubernetes objects that a service consists of, rendered from its specification. Pure: no cluster, no clock."""

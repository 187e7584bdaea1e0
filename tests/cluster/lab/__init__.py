"""A Kubernetes control plane on this machine: etcd, API server, controllers and scheduler as real processes."""

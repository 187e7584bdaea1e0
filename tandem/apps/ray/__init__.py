"""Tandem on a Ray cluster: workers and routers are replicas of Ray Serve, and a detached actor is the operator."""

"""Finds services and workers in a cluster and tells the fleet, as the workers file does on one machine."""

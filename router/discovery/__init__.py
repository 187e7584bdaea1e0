"""Finds services and workers in a cluster and reports them to the fleet, as the workers file does on one machine."""

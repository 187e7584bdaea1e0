"""The observed state of a service, read from the objects of the cluster and from router reports. Pure."""

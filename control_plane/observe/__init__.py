"""What there is of a service, read from the objects of the cluster and from what routers tell. Pure."""

"""HTTP/1.1 as the router reads it, against how other servers read the same bytes."""

"""An HTTP/1.1 server: sockets, connections and responses. Knows ASGI messages, no models."""

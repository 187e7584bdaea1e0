"""Whether prefill and decode on separate workers give the very tokens that one engine gives."""

"""Links between routers and workers: commands down, outputs up. `link` is the seam; TCP, gRPC, memory."""

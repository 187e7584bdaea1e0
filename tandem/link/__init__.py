"""Links between routers and workers: commands down, outputs up. `protocol` is the seam; TCP, memory."""

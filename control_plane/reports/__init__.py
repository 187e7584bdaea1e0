"""Router reports of load and health, folded over all routers."""

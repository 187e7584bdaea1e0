"""What routers tell of load and health, folded over all of them."""

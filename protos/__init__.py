"""Wire definitions and the Python generated from them. Imported only by `rpc.py` files."""

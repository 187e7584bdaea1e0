"""Other routers' policies, re-implemented from their sources, to compete with ours on equal terms."""

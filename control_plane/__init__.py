"""The control plane: what makes a cluster be as its `ModelService`s say."""

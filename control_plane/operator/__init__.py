"""The operator as a process: mirrors of the cluster, a queue, and plans carried out."""

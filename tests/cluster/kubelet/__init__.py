"""A small kubelet that runs pods as processes of this machine: each pod has a network of its own, each container a
file system of its own over this machine's. Images are ignored; `python` and `tandem` are those of this environment.
"""

"""The embedded engine's computing half: a `Runner` over torch. The only place that imports torch.

`build.build_runner(settings)` is the way in.
"""

"""What a GPU does with Tandem's own parts: copies, the embedded engine, a pair on one card, digests, nixl.

It needs neither vLLM nor an installed Tandem: `PYTHONPATH` and the wheels that `make gpu-wheels` brings. With
`--device cpu` everything runs in tiny sizes, to show that it runs; those figures mean nothing.
"""

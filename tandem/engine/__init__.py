"""Engines: what turns token ids into token ids. `protocol` is the seam, `scheduler` the shared decisions."""

"""Models that ship with Tandem."""

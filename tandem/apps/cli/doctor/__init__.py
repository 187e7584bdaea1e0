"""`tandem doctor`: what would go wrong, before anything is started."""

"""`tandem doctor`: what a node or a pod lacks, and what would go wrong with a file before anything is started."""

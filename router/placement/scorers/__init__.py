"""What a choice would cost, part by part, in milliseconds."""

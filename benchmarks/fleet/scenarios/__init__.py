"""What the policies compete on."""

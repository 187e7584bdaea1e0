"""The workers a router has links to: who they are, what they hold, how busy they are."""

"""The demo model: the grammar its text comes from, its training and its release probe."""

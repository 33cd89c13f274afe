"""Records that other tools made."""

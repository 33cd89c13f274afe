"""Recording two runs and finding the operator that differs."""

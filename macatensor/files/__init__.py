"""Tables that are written and files that others have written."""

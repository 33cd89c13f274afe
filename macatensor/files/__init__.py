"""Tables that are written, files that others have written, and programs that are run."""

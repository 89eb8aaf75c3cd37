"""One decoder family a file."""

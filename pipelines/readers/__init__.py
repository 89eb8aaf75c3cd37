"""One file per log format, detected by shape."""

"""Command in, result out: isolated sandboxes under one contract (base.py)."""

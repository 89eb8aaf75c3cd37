"""Tokens in, tokens out: the embedded engine and the HTTP client under one contract (base.py)."""

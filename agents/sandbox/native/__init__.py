"""The C helper that makes a sandbox, its build and its protocol."""

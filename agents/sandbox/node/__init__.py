"""Sandboxes on other machines: a node agent offers its pool over HTTP, clients place leases on several of them."""

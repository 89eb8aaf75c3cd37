"""Stages, run folder, command line, merging: everything above the agents."""

"""Thin Beam transforms, one file per stage."""

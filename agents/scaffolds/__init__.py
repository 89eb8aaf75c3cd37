"""How tools and turns are written as text."""

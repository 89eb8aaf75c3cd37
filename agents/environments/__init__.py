"""Task families: build(pattern, seed) -> Task."""

"""C for what torch does too slowly on a CPU, compiled on first use."""

"""Engine, sandbox, scaffolds, environments (each blind to the others) and the swarm that wires them."""

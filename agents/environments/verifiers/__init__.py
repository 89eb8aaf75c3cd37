"""Scripts that decide success by running inside the sandbox. Standard library only; read as text, put under /verify."""

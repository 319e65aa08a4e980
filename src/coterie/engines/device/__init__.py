"""Dense CAB's arithmetic on a GPU, or on any device that JAX knows. Needs NumPy and JAX alone."""

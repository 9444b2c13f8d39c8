"""The paper as slow NumPy loops: independent oracles, sharing no code with the library they check."""

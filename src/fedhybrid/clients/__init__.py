"""Where clients are: the only room with effects."""

"""A federation of sites on different machines."""

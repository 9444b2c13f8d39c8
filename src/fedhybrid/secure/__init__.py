"""Exact secure sums between sites and a server that must not see what any one of them sends; pure code, no network."""

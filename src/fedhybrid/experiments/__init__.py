"""The paper's experiments, and the same machinery on anybody's data: candidates are tuned and measured on problems, all on one footing."""

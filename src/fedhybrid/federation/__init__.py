"""Sites in other buildings: what they agreed on, what they send, and what each keeps so that nothing is lost."""

"""From an optimum to statistics: standard errors, tests, intervals, from sums over sites."""

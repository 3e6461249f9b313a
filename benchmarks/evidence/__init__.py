"""Which solver, rank, scale and reading: every combination judged on trained networks."""

"""`flare top`: a live view of a running server, from its /metrics alone."""

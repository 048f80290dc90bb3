"""What a run was like for its users, its tenants and its machine, computed from its log."""

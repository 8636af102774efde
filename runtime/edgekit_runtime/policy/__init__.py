"""The caller's decisions: options, and budgets in milliseconds."""

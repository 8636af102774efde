"""What the caller decided: options, and budgets in milliseconds."""

"""The ground: recipes and artifacts, kept results, progress, errors, quiet foreign code."""

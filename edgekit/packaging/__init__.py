"""Write and sign bundles."""

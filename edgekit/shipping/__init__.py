"""From a bundle to a board: what is installed there, and how it gets there."""

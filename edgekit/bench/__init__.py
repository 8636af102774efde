"""Timing a bundle as an application uses it, through `predict` and `submit`."""

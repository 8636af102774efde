"""Bundles to boards: what is installed, and how it gets there."""

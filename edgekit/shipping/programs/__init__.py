"""A bundle's model with a short program for one language, which runs without edgekit."""

"""What a caller may pass and what an answer means: decode, adapt to one artifact, finish."""

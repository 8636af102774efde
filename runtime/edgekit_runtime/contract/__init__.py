"""What a caller may pass and what an answer means.

Decode (to the canonical tensor), adapt (to one artifact), finish.
"""

"""A request's way through an open model.

model -> journey: intake, cache, the device within its budget, a fallback or a host, one answer
session: models that keep a state, asked frame by frame
"""

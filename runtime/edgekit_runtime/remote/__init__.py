"""A client for hosts that speak the Open Inference Protocol, and their record."""

"""A host that can answer for this device.
The Open Inference Protocol's wire format, a client for it, and a breaker.

The client is not imported with this package: `from edgekit_runtime.remote.client import HostClient` brings http.client,
which a device without hosts never pays for.
"""

"""What can go wrong between a device and a host. Every one of them means: no answer came from there.

try:
    answer = client.infer({"image": pixels}, timeout_s=0.05)
except HostError:
    ...                                 # the device answers, or nobody does
"""

from __future__ import annotations

from edgekit_runtime.errors import EdgekitError

__all__ = [
    "HostAddressError",
    "HostBusyError",
    "HostError",
    "HostLateError",
    "HostProtocolError",
    "HostRefusedError",
    "HostUnreachableError",
    "WireError",
]


class WireError(EdgekitError):
    """Bytes or tensors that the Open Inference Protocol does not allow, or that this codec does not carry."""

    code = "wire"


class HostError(EdgekitError):
    """The host gave no answer. Which kind decides what to do next: see the subclasses."""

    code = "host"


class HostUnreachableError(HostError):
    """No connection, or it broke before an answer: nothing listens there, the name is unknown, the host died."""

    code = "host-unreachable"


class HostAddressError(HostError):
    """What was given as a host's address is none."""

    code = "host-address"


class HostBusyError(HostError):
    """503: the host is up and will not make it in time. Asking again at once makes it worse."""

    code = "host-busy"


class HostRefusedError(HostError):
    """4xx, or another contract than ours: asking again will not help. status: the HTTP status, 0 where there is none."""

    code = "host-refused"
    status: int = 0


class HostLateError(HostError):
    """The time given ran out."""

    code = "host-late"


class HostProtocolError(HostError):
    """Something answered, and not as the protocol wants: a 5xx, bytes that are no HTTP, tensors that do not add up."""

    code = "host-protocol"

"""The address by which a server counts one client, for limits and rates.

peer_of("2001:db8::7")                                  # "2001:db8::/64"
"""

from __future__ import annotations

import ipaddress


def peer_of(address: str) -> str:
    """An IPv4 address as it is, the /64 network of an IPv6 address; other text unchanged."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 6 and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return address if parsed.version == 4 else str(ipaddress.ip_network((int(parsed), 64), strict=False))

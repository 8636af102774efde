"""Who one client of a server is, for bounds and rates that count by address.

peer_of("2001:db8::7")                                  # "2001:db8::/64"
"""

from __future__ import annotations

import ipaddress


def peer_of(address: str) -> str:
    """What one person has: an address of IPv4, the 64 bits of a network of IPv6.
    Other text as it is."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 6 and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return address if parsed.version == 4 else str(ipaddress.ip_network((int(parsed), 64), strict=False))

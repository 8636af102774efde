"""A device and its hosts on a virtual clock.
How a policy of offloading fares on the same arrivals as others.

    table = compare({"LAN 35/s": SCENARIOS["LAN 35/s"]}, seeds=(1, 2), seconds=60.0)
    print(table["LAN 35/s"].met["edgekit"], table["LAN 35/s"].bound)

Rules: edgekit's policy is the runtime's own code; every policy gets the same trace; nothing sleeps, and one seed gives
one result.
"""

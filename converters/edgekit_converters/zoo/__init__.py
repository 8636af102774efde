"""Real trained networks, rebuilt from ordinary packages.
The demo, the tests and the benchmarks run on them.

save_efficientnet_lite0(Path("efficientnet_lite0.keras"))
"""

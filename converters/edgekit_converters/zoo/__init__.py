"""Real trained networks, rebuilt from ordinary packages, for the demo, tests and benchmarks.

save_efficientnet_lite0(Path("efficientnet_lite0.keras"))
"""

"""Compress a float model with labelled data, so that it is faster or survives 8 bits.

report = compress(CompressRequest(Path("net.keras"), "train/", "labelled/", Path("out"), steps=("qat",)))
report.model                        # out/net.keras: `edgekit build` takes it, and the ranges in it
"""

"""How long an artifact will take on a board that is not here.
Anchors, measured on such a board, narrow the range.

subject     what is asked about: a model file, or the artifacts of a bundle
answer      the estimate for one board, layer by layer, or why there is none; records passed on as measured
anchoring   MobileNetV1 timed: on a board with every engine, on a workstation beside the artifact
"""

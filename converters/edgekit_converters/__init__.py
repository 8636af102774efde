"""Workstation only: a trained model in, checked artifacts out.

TensorFlow and the ONNX tools live here and nowhere else.

The journey, one package a stage: `sources` loads the model, `data` streams representative data, `targets` turns
a recipe into an artifact, `fidelity` measures how far it drifted, `choose` says which artifact a profile gets and why.
"""

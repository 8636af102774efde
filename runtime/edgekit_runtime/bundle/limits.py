"""How much of everything a manifest may hold.
What a writer refuses to write, a reader refuses to read.

The figures leave room for what models have (ImageNet-21k has 21,841 labels of at most 300 bytes) and no more than a
small board can hold while it reads.
"""

from __future__ import annotations

import re

MAX_TEXT = 1_000
"""Characters of a licence or a label."""

MAX_NAME_TEXT = 500
"""Characters of a tensor's name, a version, an operator: exporters write long names."""

MAX_BUNDLE_BYTES = 2 << 30
MAX_BLOBS = 4_096
MAX_ARTIFACTS = 64
MAX_TENSORS = 256
MAX_RANK = 8
MAX_TENSOR_ELEMENTS = 1 << 28
MAX_THREADS = 1_024
MAX_GOLDEN = 64
MAX_GOLDEN_FRAMES = 100_000
MAX_LABELS = 100_000
MAX_BOARDS = 256
MAX_OPS = 1_024
MAX_TOOLS = 256

MAX_STEPS = 1_000
"""Of a tolerance, for the engine that made the answers: a tenth of the largest value, for floats."""

MAX_SEQUENCE_STEPS = 200_000
"""The same of a sequence: in a chaotic network rounding grows to anything, and the cosine alone says something."""

MIN_COSINE = 0.5
"""Of a tolerance, for any other engine: less is not the same answer."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
VERSION = re.compile(r"[!-~]([ -~]{0,98}[!-~])?")
"""Of a model: one line of ASCII, because it is shown wherever a bundle is."""
"""Of a bundle, a profile, a recipe: what becomes part of a file's name somewhere."""

SHA256 = re.compile(r"[0-9a-f]{64}")

KEY_ID = re.compile(r"[0-9a-f]{32}")
"""Of a secret key: see `cipher.key_id`."""

"""What somebody at a board can do where a generation does not open: nobody builds or signs a bundle there.

    raise with_way_out(error, root, back=3)
    # ... Install a bundle that is signed with another key: ask its sender; or go back to generation 3: edgekit rollback --root ...

Rules:
- what is wrong stays as it was said; only what to do about it is another, by its code;
- what the caller asked for is left to the caller;
- no way is named that is none: without a generation before that opens there is no rollback.
"""

from __future__ import annotations

import shlex

from edgekit_runtime.errors import EdgekitError
from edgekit_runtime.install.layout import Root

__all__ = ["with_way_out"]

_TRUST = (
    "If it should still be trusted here, say so: edgekit keys update ROOT.json, or install it again with --trust; else install "
    "a bundle that is signed as this board asks"
)
_DO = {
    "revoked-key": "Install a bundle that is signed with another key: ask its sender",
    "unsigned": _TRUST,
    "unknown-key": _TRUST,
    "too-few-signatures": _TRUST,
    "no-trust-store": "Put back what says whom to trust: edgekit keys update ROOT.json; else install it again with --trust",
    "bad-signature": "Install it again: it was damaged here, or changed by somebody else",
    "bundle-integrity": "Install it again: it was damaged here, or changed by somebody else",
    "bundle-format": "Install it again: it was damaged here, or changed by somebody else",
    "model-file": "Install another bundle, and tell its sender",
    "selftest": "Install a bundle that was built for this board and its runtime, or install the runtime that it was made with",
}
_MENDED = ("bundle-newer", "no-generation")
"""What another bundle mends, too."""


def with_way_out(error: EdgekitError, root: Root, back: int | None = None) -> EdgekitError:
    """The same error. back: the generation that a rollback leads to, None where there is none."""
    if error.code in _DO and not error.of_the_caller:
        error.do, error.do_cli = _DO[error.code], ""
    elif error.code not in _MENDED:
        return error
    if back is not None:
        error.do += f"; or go back to generation {back}: edgekit rollback --root {shlex.quote(str(root.path))}"
    return error

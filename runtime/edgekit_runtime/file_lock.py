"""The one file lock: the kernel's own (flock), which ends with its process, however that ends.

    if take(descriptor) is False: ...                # another has it

A system or a file system without locks is told apart: who asks decides whether everybody may come in there.
"""

from __future__ import annotations

import errno

__all__ = ["take"]

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def take(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool | None:
    """True: it is ours. False: another has it, and `wait` is not set. None: nothing can be locked here. Raises OSError."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True

"""A disk that takes no more, without filling one."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def largest_file(limit_bytes: int) -> Iterator[None]:
    """Let the system refuse longer files, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

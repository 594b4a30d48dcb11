"""What the C library does with memory that a step has freed and the next one asks for again."""

import ctypes
import platform

# glibc's names and numbers, malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
NEVER = 2**31 - 1  # bytes


def keep_freed_memory() -> None:
    """Have glibc keep what is freed in this process; does nothing where there is another library.

    By default a tensor above 32 MiB goes back to the system when it is freed, and the next one
    comes page by page, each one cleared first: up to a fifth of a training step on a CPU.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)  # older versions take no M_MMAP_THRESHOLD above 32 MiB
        libc.mallopt(M_TRIM_THRESHOLD, NEVER)

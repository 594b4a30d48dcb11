"""Visiting every image of a split before training: to decode it, or to see that it can be read."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.progress import track

from vitrail.data.decode import UnreadableImage, look_at
from vitrail.data.images import Images
from vitrail.data.order import process_and_count

_CHUNK = 64  # images that a thread takes at once


def scan(count: int, visit: Callable[[int], None], *, title: str) -> dict[int, str]:
    """Call `visit` with every index below `count`, on all cores; a terminal shows progress.

    Returns: what the unreadable images said, by index.
    """

    def visit_chunk(start: int) -> dict[int, str]:
        unreadable = {}
        for index in range(start, min(start + _CHUNK, count)):
            try:
                visit(index)
            except UnreadableImage as error:
                unreadable[index] = str(error)
        return unreadable

    console = Console(stderr=True)
    quiet = not console.is_terminal or process_and_count()[0] > 0
    chunks = range(0, count, _CHUNK)
    unreadable: dict[int, str] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        visited = pool.map(visit_chunk, chunks)
        for found in track(
            visited, title, len(chunks), console=console, transient=True, disable=quiet
        ):
            unreadable |= found
    return unreadable


def look_at_all(images: Images, *, title: str) -> dict[int, str]:
    """Look at every file: what the damaged ones said, by index."""
    return scan(len(images), lambda index: look_at(images.path(index)), title=title)

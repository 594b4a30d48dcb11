"""Files that are either the previous one or the whole new one, however the writing ends."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an OSError name the file that was to be written, which a full disk leaves out."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to that takes the place of `path` on success and is removed on failure."""
    # Beside it, because a rename is atomic only within one file system; with its suffix, because
    # that chooses a picture's format.
    draft = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        with naming(path):
            yield draft
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 with line ends as given; on OSError, which names it, the previous file stays."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, content: object) -> None:
    """Write plain containers as indented JSON; TypeError for anything that JSON does not know."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

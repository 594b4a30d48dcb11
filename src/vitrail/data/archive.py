"""A published archive: downloaded once, checked by its md5, unpacked whole or not at all."""

import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from torchvision.datasets.utils import check_integrity, download_url

from vitrail.errors import UserError


@dataclass(frozen=True)
class Archive:
    """Where an archive comes from and what it unpacks to.

    Args:
        url: of the archive, whose published checksum is `md5`.
        folder: what it unpacks to.
        mark: a file or folder inside that tells a renamed `folder`.
    """

    url: str
    md5: str
    folder: str
    mark: str

    @property
    def name(self) -> str:
        return Path(self.url).name

    def find(self, root: Path) -> Path:
        """The unpacked folder: in `root`, or `root` itself. Raises `UserError` without one."""
        for folder in (root / self.folder, root):
            if (folder / self.mark).exists():
                return folder
        raise UserError(
            f"{root / self.folder / self.mark} does not exist; put {self.name} from {self.url} "
            f"into {root}, or let data.dataset.download=true fetch it"
        )

    def prepare(self, root: Path, *, download: bool) -> None:
        """Unpack the archive in `root`, downloaded where allowed, unless `find` finds its folder.

        Raises `UserError` for a missing or wrong archive, a failed download, an incomplete folder.
        """
        unpacked, archive = root / self.folder, root / self.name
        if (unpacked / self.mark).exists() or (root / self.mark).exists():
            return
        if unpacked.exists():
            raise UserError(f"{unpacked} lacks {self.mark}; remove that folder to unpack it again")
        if download:
            try:
                download_url(self.url, root, md5=self.md5)
            except RuntimeError:
                pass  # torchvision's for a wrong checksum, which is refused below with the path
            except (OSError, HTTPException) as error:
                raise UserError(
                    f"cannot download {self.url} ({error}); put that file into {root} yourself"
                ) from error
        elif not archive.exists():
            self.find(root)
        if not check_integrity(archive, self.md5):
            raise UserError(f"{archive} is damaged: its md5 is not {self.md5}; remove it and retry")
        # Unpacked beside its place and moved there whole: no run leaves half a dataset behind.
        with tempfile.TemporaryDirectory(dir=root) as beside:
            # A tar's members must stay inside the folder; a zip's always do. Early releases of
            # Python 3.11 have no filter and rely on the checksum.
            tar = archive.suffix != ".zip" and hasattr(tarfile, "data_filter")
            safely = {"filter": "data"} if tar else {}
            shutil.unpack_archive(archive, beside, **safely)
            (Path(beside) / self.folder).rename(unpacked)

"""One file per dataset; each keeps the `Dataset` contract of `vitrail.data.images`."""

"""Handwritten digits: 1,797 grey images of 8 x 8, which scikit-learn carries with it."""

import torch
from sklearn.datasets import load_digits

from vitrail.data.images import Dataset, Images, Splits
from vitrail.data.split import stratified


class Digits(Dataset):
    """The test half of UCI's optical digits; 20 % of every class are kept for testing here.

    Pixels of 0 to 16 are stretched to 0 to 255 and repeated in three channels, so that any model
    takes them.
    """

    def read(self) -> Splits:
        digits = load_digits()
        grey = torch.from_numpy(digits.images).mul(255 / 16).round().to(torch.uint8)
        images = Images(grey[:, None].repeat(1, 3, 1, 1), torch.from_numpy(digits.target).long())
        train, test = stratified(images.labels, 0.2)
        names = tuple(str(digit) for digit in digits.target_names)
        return Splits(names, {"train": images[train], "test": images[test]})

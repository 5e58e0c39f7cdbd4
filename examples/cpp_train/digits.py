"""Writes scikit-learn's digits as text: a line an image, its label and 64 values of 0 to 16."""

import sys

from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
with open(sys.argv[1], "w") as file:
    for image, label in zip(images, labels):
        print(label, *map(int, image), file=file)

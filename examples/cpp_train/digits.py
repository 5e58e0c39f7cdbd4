"""Writes scikit-learn's digits as text, in an order drawn once: a line an image, its label and 64 values of 0 to 16."""

import sys

from sklearn.datasets import load_digits
from sklearn.utils import shuffle

images, labels = shuffle(*load_digits(return_X_y=True), random_state=0)
with open(sys.argv[1], "w") as file:
    for image, label in zip(images, labels):
        print(label, *map(int, image), file=file)

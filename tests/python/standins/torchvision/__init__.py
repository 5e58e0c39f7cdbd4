"""A stand-in for torchvision: a few tiny images and models, no download."""

from torchvision import datasets as datasets
from torchvision import models as models
from torchvision import transforms as transforms

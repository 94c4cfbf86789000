"""The shipped model and pictures for it."""

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.backends import precision_check
from serving.model import Model
from serving.settings import Settings


@pytest.fixture(scope="module")
def model() -> Model:
    """The shipped one."""
    return Model.read(Settings().model_dir)


@pytest.fixture(scope="module")
def pixels(model: Model) -> NDArray[np.uint8]:
    """Eight pictures."""
    return precision_check.sample_images(model.description.pipeline.output_size)

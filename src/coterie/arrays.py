"""The types of arrays, by what they hold, and of JSON."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Array = NDArray[Any]  # of numbers or ids of any type

JsonObject: TypeAlias = dict[str, Any]  # plain values by name, such as a constructor's parameters

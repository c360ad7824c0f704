"""Results in JAX and NumPy, held to float64 by the error of a plain computation in the dtype of the call."""

import numpy as np
from error_ratios import ROUNDING_BAND, error_ratio


def held(found, plain, truth, eps):
    """Asserts that each array of found is as close to the truth as that of plain, and returns the largest ratio of their errors.

    All are dicts of arrays. eps: the distance from 1 to the next number of the call's dtype.
    """
    assert found.keys() == plain.keys() == truth.keys()
    ratios = []
    for name, exact in truth.items():
        assert np.shape(found[name]) == exact.shape and np.isfinite(exact).all(), name
        error, own = (np.abs(np.asarray(x[name], np.float64) - exact).max() for x in (found, plain))
        unit = eps * np.abs(exact).max()
        allowed = 2 * own + ROUNDING_BAND * unit
        assert error <= allowed, f"{name}: {error} from float64, {allowed} allowed"
        ratios.append(error_ratio(error, own, unit))
    return max(ratios)

"""Results in JAX and NumPy, held to float64 by the error of a plain computation in the dtype of the call."""

import numpy as np
from error_ratios import ROUNDING_BAND, error_ratio


# Fewer numbers are too small a sample of rounding errors: by chance those of the plain computation may be small.
FEWEST_NUMBERS, DRAWS = 16, 12


def errors_beside(plain, exactly, arrays, random):
    """name -> the largest error of the plain computation in results of few numbers, over inputs that differ in their last bits alone.

    plain, exactly: functions of the arrays, which return results in the call's dtype and in float64.
    """
    errors = {}
    for _ in range(DRAWS):
        beside = {name: (x * (1 + 2.0**-9 * random.standard_normal(x.shape))).astype(x.dtype) for name, x in arrays.items()}
        for name, exact in exactly(beside).items():
            if exact.size < FEWEST_NUMBERS:
                found = np.asarray(plain(beside)[name], np.float64)
                errors[name] = max(errors.get(name, 0.0), np.abs(found - exact).max())
    return errors


def held(found, plain, truth, eps, beside=None):
    """Asserts that each array of found is as close to the truth as that of plain, and returns the largest ratio of their errors.

    All are dicts of arrays. eps: the distance from 1 to the next number of the call's dtype. beside: errors_beside().
    """
    assert found.keys() == plain.keys() == truth.keys()
    ratios = []
    for name, exact in truth.items():
        assert np.shape(found[name]) == exact.shape and np.isfinite(exact).all(), name
        error, own = (np.abs(np.asarray(x[name], np.float64) - exact).max() for x in (found, plain))
        own, unit = max(own, (beside or {}).get(name, 0.0)), eps * np.abs(exact).max()
        allowed = 2 * own + ROUNDING_BAND * unit
        assert error <= allowed, f"{name}: {error} from float64, {allowed} allowed"
        ratios.append(error_ratio(error, own, unit))
    return max(ratios)

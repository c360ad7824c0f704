"""Results against float64, beside another computation of the same in the same dtype.

The truth is a dense evaluation of the published formula in float64. The error may be at most twice that of the other computation, which is the
framework's own or the data's, and a rounding band.
"""

import numpy as np

ROUNDING_BAND = 8  # units in the last place of the largest element


def held(name, found, theirs, truth, eps, scale=None):
    """Asserts that found is as close to truth as theirs allows, and returns its error by theirs.

    Parameters
    ----------
    name : str
        What the message names.
    found, theirs, truth : array
        The tested result, the other computation's, and float64's; of one shape.
    eps : float
        The distance from 1 to the next number of found's dtype.
    scale : float, optional
        The magnitude that is rounded; the largest of truth without it.

    Returns
    -------
    float
        The largest error by that of theirs, or by half a unit in the last place where theirs is smaller.
    """
    found, theirs, truth = (np.asarray(x, np.float64) for x in (found, theirs, truth))
    assert found.shape == theirs.shape == truth.shape, (name, found.shape, theirs.shape, truth.shape)
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(truth), err_msg=name)
    finite = ~np.isneginf(truth)
    error, own = (np.max(np.abs(x[finite] - truth[finite]), initial=0.0) for x in (found, theirs))
    scale = np.max(np.abs(truth[finite]), initial=0.0) if scale is None else scale
    allowed = 2 * own + ROUNDING_BAND * eps * scale
    assert error <= allowed, f"{name}: {error} from float64, {allowed} allowed"
    return error_ratio(error, own, eps * scale)


def error_ratio(error, own, unit):
    """An error by the other computation's, or by half of a unit in the last place where that is smaller."""
    least = max(own, unit / 2)
    return error / least if least else 0.0

"""The benchmark of one huge set: the file is as described, and a case that failed has a row."""

import numpy as np

from benchmarks.speed import huge_set


def test_items_do_not_depend_on_their_number(tmp_path):
    few, more = (np.load(huge_set.write_items(tmp_path / f"{n}.npy", n)) for n in (70, 150))
    assert few.shape == (70, 8) and few.dtype == np.float32
    np.testing.assert_array_equal(few, more[:70])


def test_a_case_without_a_result_has_a_row():
    failed = huge_set.Measured(error="needs more than 8 GB")
    row = huge_set.cells({"items": 300_000, "way": "context", **vars(failed)})
    whole = huge_set.cells({"items": 70, "way": "umbc exact", **vars(huge_set.Measured(10**9, 10**8, 3.0, 2.0, 1.0))})
    assert row[:3] == ["300,000", "context", "needs more than 8 GB"] and len(row) == len(whole)

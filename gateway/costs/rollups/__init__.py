"""Engine-hours divided among the requests that ran in them."""

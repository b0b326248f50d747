"""Invalid calls, and the valid ones beside them."""

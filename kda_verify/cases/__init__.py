"""Cases: what is drawn, and the tensors of a call built from it."""

"""The test suite: properties of the oracle, the kernels, the contract and the checks."""

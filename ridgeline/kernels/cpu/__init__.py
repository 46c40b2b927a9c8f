"""CPU kernels in C behind ctypes: products with packed weights, paged decode attention."""

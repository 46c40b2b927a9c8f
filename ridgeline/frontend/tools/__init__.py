"""Tools: how models write calls, read piece by piece, and asked for by grammar. Torch-free."""

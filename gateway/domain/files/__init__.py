"""Files that the platform keeps for tenants for a while: the input and the output of batches."""

"""Files that tenants keep here for a while: what batches read, and what they wrote."""

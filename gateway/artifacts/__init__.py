"""Files of adapters and tenants: read as they stream in, refused with a reason, kept in the object store by digest."""

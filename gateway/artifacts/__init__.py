"""Adapters' files: read while they come, refused with a reason, and kept in the object store by their digest."""

"""A tenant's settings for its sessions."""

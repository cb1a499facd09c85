"""What a tenant chose for its sessions."""

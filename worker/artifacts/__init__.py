"""The platform store's adapters on this machine's disk: fetched by digest, verified, and bounded in size."""

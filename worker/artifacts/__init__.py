"""Adapters of the platform's store on this machine's disk: fetched by digest, checked, and bounded."""

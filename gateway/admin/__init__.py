"""The admin REST API, `/admin/v1`: a module for each kind of object, its shapes beside its routes."""

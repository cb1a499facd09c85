"""The admin REST API, `/admin/v1`: one module per kind of object, with its schemas beside its routes."""

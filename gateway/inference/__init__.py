"""The data plane: authenticate, validate, measure, admit, route, open, stream, close, settle; one module per step."""
